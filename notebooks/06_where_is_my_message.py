# Databricks notebook source
# MAGIC %md
# MAGIC # Where is my message?
# MAGIC
# MAGIC Enter a part of its **label**, or its identifier (`guid\number`). Without input, the notebook takes the message that
# MAGIC went over most hops, and of these the one that most packets tell of.
# MAGIC
# MAGIC A message leaves its sender over TCP 1801, directly or over routing servers. Each stretch between two machines is a
# MAGIC **hop**. On each hop the receiving machine acknowledges it in the session; transactional messages are also acknowledged
# MAGIC in order, when they are in their queue. Acknowledgements that the application asked for are messages themselves. At the
# MAGIC destination a reader takes it, sometimes remotely, by RPC.
# MAGIC
# MAGIC Only what was captured is here: a hop that is missing was not captured, or took another way (HTTP, or no network at all).

# COMMAND ----------

dbutils.widgets.text("catalog", "main", "Catalog of the tables")
dbutils.widgets.text("prefix", "msmq_", "Text before the layers' names in the catalog")
dbutils.widgets.text("lake", "", "Folder of the lake (instead of the catalog)")
dbutils.widgets.text("message", "", "Label or identifier")

# COMMAND ----------

import plotly.express as px
from pyspark.sql import functions as F

from pipeline.reports.notebook_tables import NotebookTables

table = NotebookTables(
    spark,
    dbutils.widgets,
    "silver.messages",
    "gold.message_transfers",
    "bronze.session_packets",
    "gold.receive_attempts",
    "bronze.capture_files",
)
print(table.describe_missing())

# COMMAND ----------

# MAGIC %md
# MAGIC ## Message

# COMMAND ----------

search_text = dbutils.widgets.get("message")
messages, transfers = table("silver.messages"), table("gold.message_transfers")
if search_text:
    matches = F.col("label").contains(search_text) | (F.col("message_id") == search_text)
    found = messages.where(matches & F.col("message_key").isNotNull())
    transferred = found.join(transfers.select("message_key").distinct(), "message_key", "left_semi")
    first = (transferred if transferred.limit(1).count() else found).orderBy("seen_at", "sighting_key").first()
else:
    hop, packets = F.countDistinct("sender_address", "receiver_address"), F.sum(F.size("evidence"))
    of_applications = transfers.where("message_kind = 'application'").groupBy("message_key")
    hops = of_applications.agg(hop.alias("hops"), packets.alias("packets"))
    first = hops.orderBy(F.desc("hops"), F.desc("packets"), "message_key").first()
key = first["message_key"] if first else None
print(f"message_key: {key or 'no message of that name was captured'}")

# COMMAND ----------

sightings = messages.where(F.col("message_key") == key)
display(
    sightings.select(
        "message_id", "label", "message_kind", "delivery", "body_bytes", "sent_at", "time_to_reach_queue_s",
        "source_queue_manager", "destination_queue", "admin_queue", "acknowledgement_requested", "journaling",
    ).distinct()
)  # fmt: skip

# COMMAND ----------

# MAGIC %md
# MAGIC ## Hops
# MAGIC
# MAGIC One row for each hop and destination queue, in order. `outcome` is what is known of the message there: `transferred` means
# MAGIC that the next machine has it, `delivered` that it is in its queue, `received` that an application took it, `unknown` that an
# MAGIC acknowledgement may be missing from the captures. `sendings` above 1 means that it was sent again. `missing` says what was
# MAGIC not captured.

# COMMAND ----------

own = transfers.where(F.col("message_key") == key)
display(
    own.select(
        "hop_count", "sender_address", "receiver_address", "destination_queue", "outcome", "first_sent_at", "sendings",
        "sessions", "session_ack_ms", "order_ack_ms", "final_class_name", "arrival_class_name", "receive_class_name",
        "expires_at", "confidence", "missing",
    ).orderBy("first_sent_at")
)  # fmt: skip

# COMMAND ----------

# MAGIC %md
# MAGIC ## One line of time
# MAGIC
# MAGIC Every sending, acknowledgement, report, sighting in a queue, and read. `sent` and `arrived` are times that the message
# MAGIC itself carries, by the clocks of its sender and of the queue manager that holds it; all others are times of captures.

# COMMAND ----------

by_address = F.concat_ws(" \u2192 ", "sender_address", "receiver_address")
any_queue = F.coalesce("queue", "inferred_queue", "destination_queue")
in_queue = sightings.where("call_key IS NOT NULL")


def events(rows, name, time, place, detail=None, key=None):
    """Events of rows: what happened when and where, and the key of the packet or call that shows it."""
    detail = F.lit(None).cast("string") if detail is None else detail.cast("string")
    key = F.lit(None).cast("string") if key is None else F.col(key)
    columns = (
        F.col(time).alias("at"),
        F.lit(name).alias("event"),
        place.alias("place"),
        detail.alias("detail"),
        key.alias("key"),
    )
    return rows.where(F.col(time).isNotNull()).select(*columns)


receiver = F.when(F.col("sent_by") == "client", F.col("server_address")).otherwise(F.col("client_address"))
packets = table("bronze.session_packets").select("packet_key", receiver.alias("receiver_address"))
on_the_wire = sightings.where("packet_key IS NOT NULL").join(packets, "packet_key")
reads = table("gold.receive_attempts").where(F.col("message_key") == key).withColumn("call_key", F.col("evidence")[0])
reports = own.select(F.explode("reports").alias("report")).select("report.*").distinct()
lines = events(sightings.limit(1), "sent", "sent_at", F.lit("sender"), F.col("source_queue_manager"))
for more in (
    events(on_the_wire, "sending", "seen_at", by_address, F.col("transaction_number"), "packet_key"),
    events(own, "session ack", "session_acked_at", by_address),
    events(own, "stored", "stored_at", by_address),
    events(own, "order ack", "order_acked_at", by_address, F.col("transaction_number")),
    events(own, "final ack", "final_acked_at", by_address, F.col("final_class_name")),
    events(own, "arrival ack", "arrival_acked_at", by_address, F.col("arrival_class_name")),
    events(own, "receive ack", "receive_acked_at", by_address, F.col("receive_class_name")),
    events(reports, "report", "at", F.concat(F.lit("report of "), "queue_manager"), F.col("next_hop")),
    events(in_queue.limit(1), "arrived", "arrived_at", any_queue),
    events(in_queue, "seen in queue", "seen_at", any_queue, F.col("lookup_id"), "call_key"),
    events(reads, "read begins", "started_at", F.col("client_address"), F.col("action_name"), "call_key"),
    events(reads, "read ends", "ended_at", F.col("client_address"), F.col("outcome"), "call_key"),
):
    lines = lines.unionByName(more)
lines = lines.orderBy("at", "event", "place")
display(lines)

# COMMAND ----------

timeline = lines.toPandas()
if len(timeline):
    display(
        px.scatter(
            timeline,
            x="at",
            y="place",
            color="event",
            symbol="event",
            hover_data=["detail"],
            title="Where the message was",
        )
    )

# COMMAND ----------

# MAGIC %md
# MAGIC ## Packets
# MAGIC
# MAGIC Open the capture in Wireshark and go to these packet numbers.

# COMMAND ----------

evidence = own.select(F.explode("evidence").alias("packet_key")).distinct()
display(
    evidence.join(
        table("bronze.session_packets").select("packet_key", "kind", "sent_at", "capture_id", "packet_number"),
        "packet_key",
    )
    .join(table("bronze.capture_files").select("capture_id", "path"), "capture_id")
    .select("sent_at", "kind", "path", "packet_number", "packet_key")
    .orderBy("sent_at", "packet_number")
)

# COMMAND ----------

# MAGIC %md
# MAGIC ## Summary

# COMMAND ----------

last = own.orderBy(F.desc("first_sent_at"), F.desc("hop_count")).first()
taken = reads.where("outcome = 'acked'").orderBy(F.desc("ended_at")).first()
if last:
    print(f"Last hop: {last['sender_address']} to {last['receiver_address']}: {last['outcome']}.")
elif key:
    print("It was not seen on TCP 1801: it stayed on one machine, took another way, or this was not captured.")
if taken:
    print(f"{taken['client_address']} read it remotely and acknowledged it at {taken['ended_at']}.")
elif key:
    print("No remote read of it was captured. Local readers are not visible on the network.")
