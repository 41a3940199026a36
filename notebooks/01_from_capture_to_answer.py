# Databricks notebook source
# MAGIC %md
# MAGIC # From capture to answer
# MAGIC
# MAGIC A tour of the lake in five stops: what was captured, which calls were in it, what they meant, what became of the
# MAGIC messages, and what cannot be known. Each stop is a table; the columns' comments say what they hold and in what unit.
# MAGIC
# MAGIC Set **lake** to the folder that `jobs.run_all --lake` wrote, or **catalog** where the tables are in one.

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

# MAGIC %md
# MAGIC ## 1. What was captured
# MAGIC
# MAGIC Every packet record is counted once: **used** (of MSMQ connections), **binary protocol** (TCP 1801), **damaged**, or
# MAGIC **other**. `packets_dropped` is what the capturing machine itself says that it lost: null means that it does not say.

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
# MAGIC ## 2. Which calls
# MAGIC
# MAGIC Message Queuing's remote reads and its administration are DCE/RPC. The reader puts TCP streams back together, cuts
# MAGIC them into calls, and says of each how much of it was seen: `ok`, `fault`, `no_response`, `encrypted`, ...

# COMMAND ----------

calls = table("bronze.rpc_calls").groupBy("interface_name", "outcome").count()
display(
    px.bar(calls.toPandas(), x="interface_name", y="count", color="outcome", title="Calls, by what was seen of them")
)

# COMMAND ----------

# MAGIC %md
# MAGIC ## 3. What they meant
# MAGIC
# MAGIC Stubs are decoded to parameters. A receive is two calls: **Start** hands the message out, **End** acknowledges it
# MAGIC (`RR_ACK`) or gives it back (`RR_NACK`). Here are the calls of one connection, in order.

# COMMAND ----------

reads = table("silver.remote_read_calls")
busiest = reads.groupBy("connection_id").count().orderBy(F.desc("count"), "connection_id").first()["connection_id"]
display(
    reads.where(F.col("connection_id") == busiest)
    .select("requested_at", "method", "action_name", "ack_name", "request_id", "lookup_id", "hresult_name")
    .orderBy("requested_at")
    .limit(20)
)

# COMMAND ----------

# MAGIC %md
# MAGIC ## 4. What became of the messages
# MAGIC
# MAGIC `gold.receive_attempts` joins Start and End, over connections and captures: how each attempt ended, how long it
# MAGIC waited, how long the message was held. `gold.ack_sequences` puts the attempts at one message in order, and says when
# MAGIC a message may have been lost or read twice.

# COMMAND ----------

attempts = table("gold.receive_attempts")
ended = attempts.groupBy("queue", "outcome").count().toPandas()
ended["queue"] = ended["queue"].fillna("not known")
display(px.bar(ended, x="count", y="queue", color="outcome", orientation="h", title="How receives and peeks ended"))

# COMMAND ----------

risks = table("gold.ack_sequences").where("loss_risk IS NOT NULL")
display(risks.select("queue", "lookup_id", "loss_risk", "outcomes", "readers", "first_attempt_at", "settled_at"))

# COMMAND ----------

# MAGIC %md
# MAGIC ## 5. What it rests on, and what cannot be known
# MAGIC
# MAGIC `evidence` holds the keys of the calls behind an answer. From there it is one join to the capture file and the packet
# MAGIC number, and a display filter that shows just these packets in Wireshark.

# COMMAND ----------

proof = (
    attempts.where("outcome = 'acked'").orderBy("started_at").limit(3)
    .select("queue", "lookup_id", F.explode("evidence").alias("call_key"))
    .join(table("bronze.rpc_calls").select("call_key", "capture_id", "request_packet", "response_packet"), "call_key")
    .join(captures.select("capture_id", "path"), "capture_id")
)  # fmt: skip
display(
    proof.select(
        "queue", "lookup_id", "path",
        F.format_string("frame.number == %d || frame.number == %d", "request_packet", "response_packet").alias("filter"),
    )
)  # fmt: skip

# COMMAND ----------

# MAGIC %md
# MAGIC And what is *not* known stands beside every answer: in `confidence` and `missing` of the row, and added up in
# MAGIC `gold.coverage`.

# COMMAND ----------

unknown = (
    attempts.select("confidence", F.explode_outer("missing").alias("missing")).groupBy("confidence", "missing").count()
)
display(unknown.orderBy(F.desc("count")))
