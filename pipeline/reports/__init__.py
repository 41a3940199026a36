"""Reports for a terminal: lake summary, views that answer the 25 questions, message timelines, packet export."""
