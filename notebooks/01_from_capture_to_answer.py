# Databricks notebook source
# MAGIC %md
# MAGIC # From capture to answer
# MAGIC
# MAGIC A tour of the lake in six steps: captures, calls, decoded parameters, outcomes of messages, gaps, and bytes. Each step uses
# MAGIC one table. The comments of the columns give their meaning and unit.
# MAGIC
# MAGIC **catalog** and **prefix** are those of the bundle's variables `catalog` and `schema`. Set **lake** instead if
# MAGIC `run_all --lake` wrote the tables to a folder. The cluster needs this project's wheel. The last step reads the capture files
# MAGIC in **captures**.

# COMMAND ----------

dbutils.widgets.text("catalog", "main", "Catalog of the tables")
dbutils.widgets.text("prefix", "msmq_", "Text before the layers' names in the catalog")
dbutils.widgets.text("lake", "", "Folder of the lake (instead of the catalog)")
dbutils.widgets.text("captures", "/Volumes/main/msmq/captures", "Capture files to read without the lake")

# COMMAND ----------

import plotly.express as px
from pyspark.sql import functions as F

from pipeline.reports.notebook_tables import NotebookTables

table = NotebookTables(
    spark,
    dbutils.widgets,
    "bronze.capture_files",
    "bronze.rpc_calls",
    "silver.remote_read_calls",
    "gold.receive_attempts",
    "gold.ack_sequences",
)
print(table.describe_missing())

# COMMAND ----------

# MAGIC %md
# MAGIC ## 1. Captures
# MAGIC
# MAGIC Every packet is counted once: as **used** (of MSMQ connections), **binary protocol** (TCP 1801), **damaged** or **other**.
# MAGIC `packets_dropped` is the number of packets that the capturing machine reports as dropped; null means that it reports none.

# COMMAND ----------

captures = table("bronze.capture_files")
display(
    captures.select(
        F.element_at(F.split("path", "/"), -1).alias("file"), "status", "packets", "packets_used", "packets_other",
        "packets_damaged", "packets_dropped", "first_packet_at", "last_packet_at",
    ).orderBy("file")
)  # fmt: skip

# COMMAND ----------

# MAGIC %md
# MAGIC ## 2. Calls
# MAGIC
# MAGIC Message Queuing uses DCE/RPC for remote reads and administration. The reader reassembles TCP streams, splits them into
# MAGIC calls, and records for each call how much of it was captured: `ok`, `fault`, `no_response`, `encrypted`, ...

# COMMAND ----------

calls = table("bronze.rpc_calls").groupBy("interface_name", "outcome").count()
display(px.bar(calls.toPandas(), x="interface_name", y="count", color="outcome", title="Calls by outcome"))

# COMMAND ----------

# MAGIC %md
# MAGIC ## 3. Decoded parameters
# MAGIC
# MAGIC Stubs are decoded to parameters. A receive consists of two calls: **Start** hands out the message, **End** acknowledges
# MAGIC it (`RR_ACK`) or gives it back (`RR_NACK`). These are the calls of one connection, in order.

# COMMAND ----------

reads = table("silver.remote_read_calls")
busiest = reads.groupBy("connection_id").count().orderBy(F.desc("count"), "connection_id").limit(1)
display(
    reads.join(busiest.select("connection_id"), "connection_id")
    .select("requested_at", "method", "action_name", "ack_name", "request_id", "lookup_id", "hresult_name")
    .orderBy("requested_at")
    .limit(20)
)

# COMMAND ----------

# MAGIC %md
# MAGIC ## 4. Outcomes of messages
# MAGIC
# MAGIC `gold.receive_attempts` joins Start and End across connections and captures: the outcome of each attempt, how long it
# MAGIC waited, and how long the message was held. `gold.ack_sequences` orders the attempts to receive one message, and shows
# MAGIC messages that may have been lost or read twice.

# COMMAND ----------

attempts = table("gold.receive_attempts")
outcomes = attempts.groupBy("queue", "outcome").count().toPandas()
outcomes["queue"] = outcomes["queue"].fillna("unknown")
display(px.bar(outcomes, x="count", y="queue", color="outcome", orientation="h", title="Receives and peeks by outcome"))

# COMMAND ----------

risks = table("gold.ack_sequences").where("loss_risk IS NOT NULL")
display(risks.select("queue", "lookup_id", "loss_risk", "outcomes", "readers", "first_attempt_at", "settled_at"))

# COMMAND ----------

# MAGIC %md
# MAGIC ## 5. Evidence and gaps
# MAGIC
# MAGIC `evidence` holds the keys of the calls that a row is based on. One join gives the capture file and the packet numbers,
# MAGIC and a display filter that shows exactly these packets in Wireshark.

# COMMAND ----------

evidence_packets = (
    attempts.where("outcome = 'acked'").orderBy("started_at").limit(3)
    .select("queue", "lookup_id", F.explode("evidence").alias("call_key"))
    .join(table("bronze.rpc_calls").select("call_key", "capture_id", "request_packet", "response_packet"), "call_key")
    .join(captures.select("capture_id", "path"), "capture_id")
)  # fmt: skip
display(
    evidence_packets.select(
        "queue", "lookup_id", "path",
        F.format_string("frame.number == %d || frame.number == %d", "request_packet", "response_packet").alias("filter"),
    )
)  # fmt: skip

# COMMAND ----------

# MAGIC %md
# MAGIC Each row shows what is *not* known in its columns `confidence` and `missing`. `gold.coverage` has the totals.

# COMMAND ----------

gaps = (
    attempts.select("confidence", F.explode_outer("missing").alias("missing")).groupBy("confidence", "missing").count()
)
display(gaps.orderBy(F.desc("count")))

# COMMAND ----------

# MAGIC %md
# MAGIC ## 6. Without the lake
# MAGIC
# MAGIC The data source `msmq_capture` reads capture files as they are, for a first look, or for a question that no table answers.
# MAGIC The functions of `udfs.spark_functions` decode bytes in any column. Here: the parameters of all requests to open a queue.

# COMMAND ----------

from pipeline.data_source.capture_source import register_capture_source
from udfs.spark_functions import decode_stub

register_capture_source(spark)
captured = spark.read.format("msmq_capture").load(dbutils.widgets.get("captures")).where("outcome = 'ok'")
requests = captured.select(
    "request_at", "client_address",
    decode_stub("request_stub", "interface_name", "opnum", F.lit("request"), "transfer_syntax", "byte_order").alias("asked"),
)  # fmt: skip
opens = requests.where("asked.queue IS NOT NULL AND asked.access IS NOT NULL")
display(opens.select("request_at", "client_address", "asked.method", "asked.queue", "asked.access", "asked.share_mode"))
