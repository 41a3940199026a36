# Databricks notebook source
# MAGIC %md
# MAGIC # Why is this queue stuck?
# MAGIC
# MAGIC Messages pile up for one of three reasons, each visible in different tables:
# MAGIC
# MAGIC 1. **Nobody reads** a local queue: messages wait, and no receive takes them.
# MAGIC 2. **Nothing is sent** from an outgoing queue: it is not connected, or on hold.
# MAGIC 3. **Nothing is acknowledged**: the window of a transactional queue does not move, and the sender climbs the resend ladder
# MAGIC    (pauses of seconds at first, of hours later).
# MAGIC
# MAGIC Enter a **queue** (a part of its name). Without input, the notebook takes the queue with the longest stalled transfer, or
# MAGIC else the queue with the most messages. It begins with the **verdict**, as `msmq queue` prints it; the tables that it rests
# MAGIC on follow.

# COMMAND ----------

dbutils.widgets.text("catalog", "main", "Catalog of the tables")
dbutils.widgets.text("prefix", "msmq_", "Text before the layers' names in the catalog")
dbutils.widgets.text("lake", "", "Folder of the lake (instead of the catalog)")
dbutils.widgets.text("queue", "", "Part of the queue's name")

# COMMAND ----------

import plotly.express as px
from pyspark.sql import functions as F

from pipeline.alerts.conditions import Thresholds
from pipeline.lake.engine.collect import collect
from pipeline.reports.lake_options import lake_options
from pipeline.reports.notebook_tables import NotebookTables
from pipeline.reports.queue_verdict.formatting import format_verdict
from pipeline.reports.queue_verdict.verdict import find_verdicts

table = NotebookTables(
    spark,
    dbutils.widgets,
    "gold.queue_history",
    "gold.eod_transfers",
    "gold.receive_attempts",
    "gold.eod_sources",
    "gold.alerts",
)
print(table.describe_missing())

# COMMAND ----------

history, transfers = table("gold.queue_history"), table("gold.eod_transfers")
queue_part = dbutils.widgets.get("queue").lower()
if not queue_part:
    stalled = (
        transfers.where("condition = 'stalled'").orderBy("stalled_since", F.desc("unacked_count"), "queue").first()
    )
    fullest = history.where("message_count IS NOT NULL").orderBy(F.desc("message_count"), "queue").first()
    queue_part = (stalled or fullest)["queue"] if stalled or fullest else ""
is_queue = F.lower("queue").contains(queue_part)
print(f"queue: {queue_part}")

# COMMAND ----------

# MAGIC %md
# MAGIC ## Verdict
# MAGIC
# MAGIC In trouble or not, since when, why, what to do, and what is not known. Then the queue's active alerts as the last run left
# MAGIC them: those of one cause together, `follows_from` the leading one. "No trouble is seen" means that none is active.

# COMMAND ----------

alerts = collect(table("gold.alerts"))
found = find_verdicts(table.lake, queue_part, Thresholds(), alerts=alerts)
for verdict in found.verdicts[:3]:
    print("\n".join(format_verdict(verdict, lake_options(table.lake))))
print(f"{len(found.verdicts)} queues of which something was captured have such a name.")

# COMMAND ----------

rows = [
    (verdict.facts.queue, row["severity"], row["condition"], row["since"], row["message"], entry.leading["condition"])
    for verdict in found.verdicts
    for entry in verdict.entries
    for row in entry.alerts
]
columns = "queue string, severity string, condition string, since timestamp, message string, follows_from string"
display(spark.createDataFrame(rows, columns))

# COMMAND ----------

# MAGIC %md
# MAGIC ## State and number of messages
# MAGIC
# MAGIC An observation is valid until the next one, for at most `history.max_gap`. After that the state is `UNKNOWN`, and so is the
# MAGIC number of messages. A gap in the line means *unknown*, not zero.

# COMMAND ----------

intervals = history.where(is_queue).orderBy("queue_manager", "valid_from")
states = intervals.select("queue_manager", "valid_from", "valid_to", "state", "message_count").toPandas()
if len(states):
    display(
        px.timeline(states, x_start="valid_from", x_end="valid_to", y="queue_manager", color="state", title="State")
    )
    display(
        px.line(states, x="valid_from", y="message_count", color="queue_manager", line_shape="hv", title="Messages")
    )

# COMMAND ----------

# MAGIC %md
# MAGIC ## 1. Readers
# MAGIC
# MAGIC Only *remote* readers are visible on the wire. `unexplained_change` is what local readers and senders did: the reported
# MAGIC count less the count that the captured calls explain.

# COMMAND ----------

readers = table("gold.receive_attempts").where(is_queue)
display(
    readers.groupBy("client_address", "outcome").agg(F.count("*").alias("attempts"), F.max("started_at").alias("last"))
)

# COMMAND ----------

display(
    intervals.select(
        "valid_from", "message_count", "received", "nacked", "purged", "expected_message_count", "unexplained_change"
    )
)

# COMMAND ----------

# MAGIC %md
# MAGIC ## 2. and 3. Sends and acknowledgements
# MAGIC
# MAGIC `stalled` means: messages are unacknowledged, and none was acknowledged since the previous observation. `ladder_step` shows
# MAGIC how long the sender pauses, `next_resend_at` when it sends again. `reset` means that a new sequence began: check at the
# MAGIC receiver what became of the messages that were in flight.

# COMMAND ----------

window = transfers.where(is_queue).orderBy("observed_at")
observations = window.select(
    "observed_at", "queue_manager", "source", "condition", "first_unacked_number", "next_number", "unacked_count",
    "resend_count", "ladder_step", "next_resend_at", "stalled_since", "in_flight_s",
)  # fmt: skip
display(observations)

# COMMAND ----------

points = observations.select("observed_at", "source", "unacked_count", "resend_count").toPandas()
if len(points):
    display(
        px.line(
            points,
            x="observed_at",
            y=["unacked_count", "resend_count"],
            facet_row="source",
            markers=True,
            title="Unacknowledged messages and resend count",
        )
    )

# COMMAND ----------

# MAGIC %md
# MAGIC ## Reports of the receiver
# MAGIC
# MAGIC With a `reject_count` above 0, the receiver rejects messages of this sender. `disagrees_with_sender` compares both ends: a
# MAGIC gap, or a sequence that one of them does not know.

# COMMAND ----------

display(
    table("gold.eod_sources")
    .where(is_queue | F.lower("sender_queue").contains(queue_part))
    .groupBy("queue", "sender_queue_manager", "sender_queue")
    .agg(
        F.max("observed_at").alias("observed_at"),
        F.max("reject_count").alias("most_rejects"),
        F.max("disagrees_with_sender").alias("disagrees"),
    )
)

# COMMAND ----------

# MAGIC %md
# MAGIC ## Summary

# COMMAND ----------

last = intervals.where("state <> 'UNKNOWN'").orderBy(F.desc("valid_from")).first()
transfer = window.orderBy(F.desc("observed_at")).first()
if last:
    count = "an unknown number of" if last["message_count"] is None else last["message_count"]
    print(
        f"Last report at {last['valid_from']}: {last['state']}, {count} messages{', on hold' if last['paused'] else ''}."
    )
if transfer:
    since = f" since {transfer['stalled_since']}" if transfer["stalled_since"] else ""
    print(
        f"Its transfer is {transfer['condition']}{since}: {transfer['unacked_count']} unacknowledged, resend count {transfer['resend_count']}."
    )
if not readers.limit(1).count():
    print("No remote receive from this queue was captured. Local readers are not visible.")
