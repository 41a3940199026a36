"""The site that an operator opens: tables to plain data (``reading``), plain data to one page (``page``)."""
