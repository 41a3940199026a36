# Databricks notebook source
# MAGIC %md
# MAGIC # Exploring COM+ calls
# MAGIC
# MAGIC Queued components record method calls in messages ([MC-COMQC]): an application calls a method, the recorder writes the
# MAGIC call to a message, and a player executes it later on the other side. If the player fails, the message is retried, moves
# MAGIC through retry queues, and ends in a dead queue. `silver.comqc_calls` has one row per call and sighting of its message: a
# MAGIC call that was tried three times has three rows.

# COMMAND ----------

dbutils.widgets.text("catalog", "main", "Catalog of the tables")
dbutils.widgets.text("prefix", "msmq_", "Text before the layers' names in the catalog")
dbutils.widgets.text("lake", "", "Folder of the lake (instead of the catalog)")

# COMMAND ----------

import plotly.express as px
from pyspark.sql import functions as F

from pipeline.reports.notebook_tables import NotebookTables

table = NotebookTables(
    spark,
    dbutils.widgets,
    "silver.comqc_calls",
    "silver.messages",
    "gold.ack_sequences",
)
print(table.describe_missing())

# COMMAND ----------

calls, messages = table("silver.comqc_calls"), table("silver.messages")
call_count = calls.count()
print(f"{call_count} calls in {messages.where('is_comqc').count()} sightings of messages with recorded calls")
print(f"{messages.where('comqc_rejected IS NOT NULL').count()} of them violate the format: see comqc_rejected")

# COMMAND ----------

# MAGIC %md
# MAGIC ## Methods
# MAGIC
# MAGIC An interface is identified by its GUID. The names of its methods are in its type library, which messages do not contain.
# MAGIC Calls by **dispatch** have a dispatch id, and arguments with their types.

# COMMAND ----------

methods = calls.groupBy("target_clsid", "interface_id", "opnum", "dispatch_id").agg(
    F.count("*").alias("calls"), F.countDistinct("message_key").alias("messages"), F.max("seen_at").alias("last")
)
display(methods.orderBy(F.desc("calls")))
if call_count:
    methods_by_count = methods.withColumn(
        "method", F.concat_ws(" ", "interface_id", F.coalesce("dispatch_id", "opnum"))
    ).toPandas()
    display(px.bar(methods_by_count, x="calls", y="method", orientation="h", title="Calls by method"))

# COMMAND ----------

# MAGIC %md
# MAGIC ## Arguments

# COMMAND ----------

arguments = calls.where("is_dispatch").select("seen_at", "interface_id", "dispatch_id", F.posexplode_outer("arguments"))
display(
    arguments.select("seen_at", "interface_id", "dispatch_id", "pos", "col.vt_name", "col.value")
    .orderBy("seen_at", "pos")
    .limit(50)
)

# COMMAND ----------

# MAGIC %md
# MAGIC ## Retries and poison messages
# MAGIC
# MAGIC A message that was seen several times, with a rising abort count or in a retry queue, contains a call that its player cannot
# MAGIC execute.

# COMMAND ----------

retried = (
    messages.where("is_comqc AND message_key IS NOT NULL")
    .groupBy("message_key")
    .agg(
        F.count("*").alias("sightings"), F.collect_set("queue").alias("queues"),
        F.max("abort_count").alias("aborts"), F.max("label").alias("label"),
    )
    .where("sightings > 1 OR aborts > 0")
)  # fmt: skip
display(retried.orderBy(F.desc("sightings")))

# COMMAND ----------

# MAGIC %md
# MAGIC `gold.ack_sequences` has the fates of these messages, by `message_key`. The notebook *What happened to this message?* shows
# MAGIC more.

# COMMAND ----------

display(
    table("gold.ack_sequences")
    .join(retried.select("message_key"), "message_key")
    .select("queue", "lookup_id", "outcomes", "fate", "loss_risk")
)
