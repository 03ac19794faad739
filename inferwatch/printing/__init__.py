"""What is printed or written to files: text, JSON, Markdown, HTML, exports."""
