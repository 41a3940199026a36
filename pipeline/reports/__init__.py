"""Reports for a terminal: lake summary, views that answer the 28 questions, message timelines, packet export."""
