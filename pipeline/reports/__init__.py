"""Reports for a terminal: lake summary, views that answer the 27 questions, message timelines, packet export."""
