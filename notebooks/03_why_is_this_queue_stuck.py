# Databricks notebook source
# MAGIC %md
# MAGIC # Why is this queue stuck?
# MAGIC
# MAGIC There are three reasons for messages to pile up, and they are found in different places:
# MAGIC
# MAGIC 1. **Nobody reads** a local queue: messages wait, and no receive takes them.
# MAGIC 2. **Nothing is sent** from an outgoing queue: it is not connected, or on hold.
# MAGIC 3. **It is sent and not acknowledged**: the window of a transactional queue does not move, and the sender climbs the resend
# MAGIC    ladder (short pauses first, hours later).
# MAGIC
# MAGIC Give a **queue** (a part of its name). Without one, the queue is taken whose transfer stands still for longest, else the
# MAGIC one that holds the most messages.

# COMMAND ----------

import plotly.express as px
from pyspark.sql import functions as F

dbutils.widgets.text("lake", "/Volumes/main/msmq/lake", "Folder of the lake")
dbutils.widgets.text("catalog", "", "Catalog (instead of the folder)")
dbutils.widgets.text("queue", "", "Part of the queue's name")


def table(name):
    """A table by its layer and name: gold.receive_attempts."""
    catalog = dbutils.widgets.get("catalog")
    if catalog:
        return spark.table(f"{catalog}.{name}")
    return spark.read.format("delta").load(f"{dbutils.widgets.get('lake')}/{name.replace('.', '/')}")


# COMMAND ----------

history, transfers = table("gold.queue_history"), table("gold.eod_transfers")
part = dbutils.widgets.get("queue").lower()
if not part:
    stalled = (
        transfers.where("condition = 'stalled'").orderBy("stalled_since", F.desc("unacked_count"), "queue").first()
    )
    fullest = history.where("message_count IS NOT NULL").orderBy(F.desc("message_count"), "queue").first()
    part = (stalled or fullest)["queue"] if stalled or fullest else ""
of_queue = F.lower("queue").contains(part)
print(f"queue: {part}")

# COMMAND ----------

# MAGIC %md
# MAGIC ## Its state, and how many messages it held
# MAGIC
# MAGIC An observation holds until the next one, for `history.max_gap` at most; after that the state is `UNKNOWN`, and so is the
# MAGIC number of messages. A gap in the line is *not known*, not zero.

# COMMAND ----------

intervals = history.where(of_queue).orderBy("queue_manager", "valid_from")
pieces = intervals.select("queue_manager", "valid_from", "valid_to", "state", "message_count").toPandas()
if len(pieces):
    display(
        px.timeline(pieces, x_start="valid_from", x_end="valid_to", y="queue_manager", color="state", title="State")
    )
    display(
        px.line(pieces, x="valid_from", y="message_count", color="queue_manager", line_shape="hv", title="Messages")
    )

# COMMAND ----------

# MAGIC %md
# MAGIC ## 1. Is anybody reading?
# MAGIC
# MAGIC Only *remote* readers are seen on the wire. `unexplained_change` is what local readers and senders must have done: the count
# MAGIC that was reported less the one that the captured calls explain.

# COMMAND ----------

readers = table("gold.receive_attempts").where(of_queue)
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
# MAGIC ## 2. and 3. Is it sent, is it acknowledged?
# MAGIC
# MAGIC `stalled`: something is unacknowledged and nothing has been acknowledged since the observation before. The step of the
# MAGIC ladder says how long the sender pauses; `next_resend_at` is when it will try again. `reset` means that the sequence began
# MAGIC anew: what was in flight then is worth a look at the receiver.

# COMMAND ----------

window = transfers.where(of_queue).orderBy("observed_at")
seen = window.select(
    "observed_at", "queue_manager", "source", "condition", "first_unacked_number", "next_number", "unacked_count",
    "resend_count", "ladder_step", "next_resend_at", "stalled_since", "in_flight_s",
)  # fmt: skip
display(seen)

# COMMAND ----------

points = seen.select("observed_at", "source", "unacked_count", "resend_count").toPandas()
if len(points):
    display(
        px.line(
            points,
            x="observed_at",
            y=["unacked_count", "resend_count"],
            facet_row="source",
            markers=True,
            title="Window and tries",
        )
    )

# COMMAND ----------

# MAGIC %md
# MAGIC ## What the receiver says
# MAGIC
# MAGIC `reject_count` above 0: the receiver turns this sender's messages away. `disagrees_with_sender` compares both ends: a gap, or
# MAGIC a sequence that one of them does not know.

# COMMAND ----------

display(
    table("gold.eod_sources")
    .where(of_queue | F.lower("sender_queue").contains(part))
    .groupBy("queue", "sender_queue_manager", "sender_queue")
    .agg(
        F.max("observed_at").alias("observed_at"),
        F.max("reject_count").alias("most_rejects"),
        F.max("disagrees_with_sender").alias("disagrees"),
    )
)

# COMMAND ----------

# MAGIC %md
# MAGIC ## In a sentence

# COMMAND ----------

last = intervals.where("state <> 'UNKNOWN'").orderBy(F.desc("valid_from")).first()
stand = window.orderBy(F.desc("observed_at")).first()
if last:
    held = "an unknown number of" if last["message_count"] is None else last["message_count"]
    print(
        f"Last told at {last['valid_from']}: {last['state']}, {held} messages{', on hold' if last['paused'] else ''}."
    )
if stand:
    since = f" since {stand['stalled_since']}" if stand["stalled_since"] else ""
    print(
        f"Its transfer is {stand['condition']}{since}: {stand['unacked_count']} not acknowledged, tried {stand['resend_count']} times."
    )
if not readers.limit(1).count():
    print("No remote receive from it was captured: local readers cannot be seen.")
