# Databricks notebook source
# MAGIC %md
# MAGIC # Exploring COM+ calls
# MAGIC
# MAGIC Queued components record method calls in messages ([MC-COMQC]): an application calls a method, the recorder writes the
# MAGIC call into a message, a player makes it on the other side, later. When a player fails the message is tried again, moves
# MAGIC through retry queues, and ends in a dead queue. `silver.comqc_calls` has a row for each call in each sighting of its
# MAGIC message, so a call that was tried three times is there three times.

# COMMAND ----------

import plotly.express as px
from pyspark.sql import functions as F

dbutils.widgets.text("lake", "/Volumes/main/msmq/lake", "Folder of the lake")
dbutils.widgets.text("catalog", "", "Catalog (instead of the folder)")


def table(name):
    """A table by its layer and name: gold.receive_attempts."""
    catalog = dbutils.widgets.get("catalog")
    if catalog:
        return spark.table(f"{catalog}.{name}")
    return spark.read.format("delta").load(f"{dbutils.widgets.get('lake')}/{name.replace('.', '/')}")


# COMMAND ----------

calls, messages = table("silver.comqc_calls"), table("silver.messages")
number = calls.count()
print(f"{number} calls in {messages.where('is_comqc').count()} sightings of messages that say that they hold some")
print(f"{messages.where('comqc_rejected IS NOT NULL').count()} of them must be rejected: see comqc_rejected")

# COMMAND ----------

# MAGIC %md
# MAGIC ## Which methods
# MAGIC
# MAGIC An interface is known by its GUID; what its methods are called stands in its type library, which no message carries. Calls
# MAGIC by **dispatch** carry a dispatch id, and their arguments in a form that tells its own types.

# COMMAND ----------

methods = calls.groupBy("target_clsid", "interface_id", "opnum", "dispatch_id").agg(
    F.count("*").alias("calls"), F.countDistinct("message_key").alias("messages"), F.max("seen_at").alias("last")
)
display(methods.orderBy(F.desc("calls")))
if number:
    counted = methods.withColumn(
        "method", F.concat_ws(" ", "interface_id", F.coalesce("dispatch_id", "opnum"))
    ).toPandas()
    display(px.bar(counted, x="calls", y="method", orientation="h", title="Calls by method"))

# COMMAND ----------

# MAGIC %md
# MAGIC ## What they were called with

# COMMAND ----------

arguments = calls.where("is_dispatch").select("seen_at", "interface_id", "dispatch_id", F.posexplode_outer("arguments"))
display(
    arguments.select("seen_at", "interface_id", "dispatch_id", "pos", "col.vt_name", "col.value")
    .orderBy("seen_at", "pos")
    .limit(50)
)

# COMMAND ----------

# MAGIC %md
# MAGIC ## Tried again, and poison
# MAGIC
# MAGIC The same message seen several times, with a growing abort count or in a retry queue, is a call that its player could not make.

# COMMAND ----------

again = (
    messages.where("is_comqc AND message_key IS NOT NULL")
    .groupBy("message_key")
    .agg(
        F.count("*").alias("sightings"), F.collect_set("queue").alias("queues"),
        F.max("abort_count").alias("aborts"), F.max("label").alias("label"),
    )
    .where("sightings > 1 OR aborts > 0")
)  # fmt: skip
display(again.orderBy(F.desc("sightings")))

# COMMAND ----------

# MAGIC %md
# MAGIC What became of these messages tells `gold.ack_sequences`, by `message_key`: the notebook *What happened to this message* takes
# MAGIC it from there.

# COMMAND ----------

display(
    table("gold.ack_sequences")
    .join(again.select("message_key"), "message_key")
    .select("queue", "lookup_id", "outcomes", "fate", "loss_risk")
)
