"""Dashboards: the HTML page, metrics for Prometheus, and a Databricks dashboard, from one set of datasets."""
