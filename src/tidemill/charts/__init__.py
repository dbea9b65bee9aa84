"""Charts as SVG text, for pages, reports and files: values in, text out. Knows no job, no site, no page. Pure."""
