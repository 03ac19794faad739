"""Everything printed or written to files: text, JSON, Markdown, HTML and exports."""
