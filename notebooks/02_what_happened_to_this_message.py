# Databricks notebook source
# MAGIC %md
# MAGIC # What happened to this message?
# MAGIC
# MAGIC Enter a part of its **label**, its identifier (`guid\number`), its lookup id, or the application's own id of the
# MAGIC message or of its conversation. Without input, the notebook takes the
# MAGIC message that was handed out most often, because such a message usually has a problem.
# MAGIC
# MAGIC A message has three names: `message_key` (from sender, number and time: the same wherever the message is seen), the
# MAGIC message identifier that applications log, and the **lookup id** that its queue assigned.

# COMMAND ----------

dbutils.widgets.text("catalog", "main", "Catalog of the tables")
dbutils.widgets.text("prefix", "msmq_", "Text before the layers' names in the catalog")
dbutils.widgets.text("lake", "", "Folder of the lake (instead of the catalog)")
dbutils.widgets.text("message", "", "Label, identifier, lookup id, application's id or conversation")

# COMMAND ----------

import plotly.express as px
from pyspark.sql import functions as F

from pipeline.reports.notebook_tables import NotebookTables
from pipeline.reports.trace.conversation import trace_conversation
from pipeline.reports.trace.conversation_formatting import format_conversation

table = NotebookTables(
    spark,
    dbutils.widgets,
    "silver.messages",
    "gold.ack_sequences",
    "gold.receive_attempts",
    "bronze.rpc_calls",
    "bronze.capture_files",
)
print(table.describe_missing())

# COMMAND ----------

# MAGIC %md
# MAGIC ## Message

# COMMAND ----------

search_text = dbutils.widgets.get("message")
messages, sequences = table("silver.messages"), table("gold.ack_sequences")
if search_text:
    matches = (
        F.col("label").contains(search_text)
        | (F.col("message_id") == search_text)
        | (F.col("lookup_id").cast("string") == search_text)
        | (F.col("application_message_id") == search_text)
        | (F.col("conversation_id") == search_text)
    )
    first = messages.where(matches & F.col("message_key").isNotNull()).orderBy("seen_at", "sighting_key").first()
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
# MAGIC ## Conversation
# MAGIC
# MAGIC All messages of its conversation, each indented below the one that caused it, as the application's headers say; the
# MAGIC earliest 40. A copy in an error queue has the type of the exception.

# COMMAND ----------

said = sightings.where("application_message_id IS NOT NULL").select("application_message_id").first()
if said:
    found = trace_conversation(table.lake, application_id=said["application_message_id"], most=40)
    print("\n".join(format_conversation(found)))
else:
    print("Its headers have no id of an application.")

# COMMAND ----------

# MAGIC %md
# MAGIC ## Receives in order of time
# MAGIC
# MAGIC **hold** is the time from handing out the message to its acknowledgement. More than one `acked` means that two readers
# MAGIC processed the message: `read_twice`. A `rundown` is a connection that ended while it held the message.

# COMMAND ----------

attempts = table("gold.receive_attempts").where(F.col("message_key") == key).orderBy("started_at")
attempt_rows = attempts.select(
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
display(attempt_rows)

# COMMAND ----------

timeline = attempt_rows.toPandas()
timeline["until"] = timeline["ended_at"].fillna(timeline["returned_at"]).fillna(timeline["started_at"])
if len(timeline):
    display(
        px.timeline(
            timeline,
            x_start="started_at",
            x_end="until",
            y="client_address",
            color="outcome",
            title="Readers that held the message",
        )
    )

# COMMAND ----------

# MAGIC %md
# MAGIC ## Fate and loss risk
# MAGIC
# MAGIC `fate` follows from the last completed receive, unless a later move or purge overrides it. `loss_risk` is the first that
# MAGIC applies: read twice, acknowledgement refused, acknowledgement unanswered, reader lost, poison.

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
# MAGIC ## Packets
# MAGIC
# MAGIC Open the capture in Wireshark and go to these packet numbers. Or let `msmq export_packets --call KEY` write the
# MAGIC packets to a file, with the bind that Wireshark needs to decode them.

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

# COMMAND ----------

# MAGIC %md
# MAGIC ## What the packets say
# MAGIC
# MAGIC The parameters of these calls, decoded once more from the stubs in bronze. This needs the setting
# MAGIC `store.stubs`.

# COMMAND ----------

from udfs.spark_functions import decode_stub

stubs = table("bronze.rpc_calls").join(evidence.select("call_key").distinct(), "call_key").where("outcome = 'ok'")
asked, answered = (
    decode_stub(f"{half}_stub", "interface_name", "opnum", F.lit(half), "transfer_syntax", order)
    for half, order in (("request", "byte_order"), ("response", "response_byte_order"))
)
display(
    stubs.select("request_at", asked.alias("asked"), answered.alias("answer"))
    .select(
        "request_at", "asked.method", "asked.action_name", "asked.ack_name", "asked.lookup_id", "answer.hresult_name"
    )
    .orderBy("request_at")
)
