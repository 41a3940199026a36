"""Spark: its sessions and their settings, Arrow tables as frames, and the tables that Spark stores."""
