"""What all HTML pages share: the document, tables, charts as SVG."""
