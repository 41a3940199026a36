# Databricks notebook source
# MAGIC %md
# MAGIC # What happened to this message?
# MAGIC
# MAGIC Give a part of its **label**, its identifier (`guid\number`), or its lookup id. Without any the message that was handed out
# MAGIC most often is taken, which is usually one that deserves a look.
# MAGIC
# MAGIC A message is known by three names: `message_key` (sender, number and time: it stays the same wherever the message is
# MAGIC seen), the message identifier that applications log, and the **lookup id** that its queue gave it.

# COMMAND ----------

import plotly.express as px
from pyspark.sql import functions as F

dbutils.widgets.text("lake", "/Volumes/main/msmq/lake", "Folder of the lake")
dbutils.widgets.text("catalog", "", "Catalog (instead of the folder)")
dbutils.widgets.text("message", "", "Label, identifier or lookup id")


def table(name):
    """A table by its layer and name: gold.receive_attempts."""
    catalog = dbutils.widgets.get("catalog")
    if catalog:
        return spark.table(f"{catalog}.{name}")
    return spark.read.format("delta").load(f"{dbutils.widgets.get('lake')}/{name.replace('.', '/')}")


# COMMAND ----------

# MAGIC %md
# MAGIC ## Which message

# COMMAND ----------

wanted = dbutils.widgets.get("message")
messages, sequences = table("silver.messages"), table("gold.ack_sequences")
if wanted:
    named = (
        F.col("label").contains(wanted)
        | (F.col("message_id") == wanted)
        | (F.col("lookup_id").cast("string") == wanted)
    )
    first = messages.where(named & F.col("message_key").isNotNull()).orderBy("seen_at", "sighting_key").first()
    key = first["message_key"] if first else None
else:
    most = sequences.where("message_key IS NOT NULL").orderBy(F.desc("attempts"), "sequence_key").first()
    key = most["message_key"] if most else None
print(f"message_key: {key or 'no message of that name was captured'}")

# COMMAND ----------

sightings = messages.where(F.col("message_key") == key)
display(
    sightings.select(
        "seen_at", "queue", "lookup_id", "label", "message_id", "class_name", "body_bytes", "sent_at", "arrived_at",
        "source_queue_manager", "destination_queue", "abort_count", "move_count",
    ).orderBy("seen_at")
)  # fmt: skip

# COMMAND ----------

# MAGIC %md
# MAGIC ## Its receives, in order
# MAGIC
# MAGIC **hold** is the time between handing the message out and the reader's word on it. `acked` more than once means that two
# MAGIC readers believe it was theirs: `read_twice`. A `rundown` is a connection that ended while it held the message.

# COMMAND ----------

attempts = table("gold.receive_attempts").where(F.col("message_key") == key).orderBy("started_at")
shown = attempts.select(
    "started_at",
    "returned_at",
    "ended_at",
    "queue",
    "client_address",
    "action_name",
    "outcome",
    "hold_ms",
    "confidence",
    "missing",
)
display(shown)

# COMMAND ----------

held = shown.toPandas()
held["until"] = held["ended_at"].fillna(held["returned_at"]).fillna(held["started_at"])
if len(held):
    display(
        px.timeline(
            held, x_start="started_at", x_end="until", y="client_address", color="outcome", title="Who held it when"
        )
    )

# COMMAND ----------

# MAGIC %md
# MAGIC ## Its fate
# MAGIC
# MAGIC `fate` follows from the last receive that was settled; a later move or purge overrides it. `loss_risk` is the first that
# MAGIC holds of: read twice, acknowledgement refused, acknowledgement unanswered, reader lost, poison.

# COMMAND ----------

display(
    sequences.where(F.col("message_key") == key).select(
        "queue",
        "lookup_id",
        "attempts",
        "peeks",
        "outcomes",
        "readers",
        "fate",
        "loss_risk",
        "redelivered",
        "moved_to",
        "missing",
    )
)

# COMMAND ----------

# MAGIC %md
# MAGIC ## The packets
# MAGIC
# MAGIC Open the capture in Wireshark and paste the filter; or have `python -m jobs.export_packets --call KEY` write the packets
# MAGIC and the bind that explains them.

# COMMAND ----------

evidence = attempts.select("started_at", "outcome", F.explode("evidence").alias("call_key"))
display(
    evidence.join(
        table("bronze.rpc_calls").select("call_key", "capture_id", "request_packet", "response_packet"), "call_key"
    )
    .join(table("bronze.capture_files").select("capture_id", "path"), "capture_id")
    .select("started_at", "outcome", "call_key", "path", "request_packet", "response_packet")
    .orderBy("started_at", "request_packet")
)
