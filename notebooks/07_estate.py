# Databricks notebook source
# MAGIC %md
# MAGIC # The estate, and what a move away from MSMQ would need
# MAGIC
# MAGIC Who sends what to whom, how much and how large, which features of Message Queuing are in use, what is full soon, and which
# MAGIC queues another system could take over. `msmq report_estate` makes a page of the same views.
# MAGIC
# MAGIC All of it is what *captures and reports show* of the days asked for. An empty cell means **not seen**, which is not "never
# MAGIC used": an application that runs once a year is not in captures of 30 days. Programs that read on the queue's own machine
# MAGIC are never seen.

# COMMAND ----------

dbutils.widgets.text("catalog", "main", "Catalog of the tables")
dbutils.widgets.text("prefix", "msmq_", "Text before the layers' names in the catalog")
dbutils.widgets.text("lake", "", "Folder of the lake (instead of the catalog)")
dbutils.widgets.text("days", "30", "Days before the newest packet or report")
dbutils.widgets.text("quota", "", "Quota of each queue manager in bytes (empty: 8 GiB are assumed)")

# COMMAND ----------

from datetime import timedelta

import plotly.express as px
from pyspark.sql import functions as F

from pipeline.bronze.event_time import newest_event_time
from pipeline.reports.notebook_tables import NotebookTables
from pipeline.reports.targets.target_file import bundled_targets
from pipeline.reports.targets.verdicts import judge_queues, verdict_rows
from pipeline.reports.views.catalog import LakeViews
from pipeline.reports.views.scope import Scope

table = NotebookTables(spark, dbutils.widgets, "bronze.capture_files", "silver.messages", "gold.queue_history")
print(table.describe_missing())

# COMMAND ----------

days = int(dbutils.widgets.get("days"))
newest = newest_event_time(table.lake)
since = None if newest is None else newest - timedelta(days=days)
quota = int(dbutils.widgets.get("quota") or 0) or None
views = LakeViews(table.lake, as_of=newest, machine_quota_bytes=quota, scope=Scope(since, newest))


def answer(name):
    """The rows of a view, as a frame; the view is computed once."""
    rows = views.answer(name)
    return spark.createDataFrame(rows if len(rows) else rows.schema.empty_table())


captures = table("bronze.capture_files").where(F.lit(since).isNull() | (F.col("last_packet_at") >= F.lit(since)))
messages = table("silver.messages").count()
print(f"{days} days until {newest}: {captures.count()} captures; {messages} sightings of messages in the lake")

# COMMAND ----------

# MAGIC %md
# MAGIC ## Queues
# MAGIC
# MAGIC One row for each queue; `docs/reference/questions.md` explains each column. A count of messages rests on those of which the
# MAGIC property is known: compare it with `headers_known`, not with `messages`. Rates are those of the minutes that were captured.

# COMMAND ----------

queues = answer("estate_queues")
display(queues)

# COMMAND ----------

# MAGIC %md
# MAGIC ## Who sends to whom
# MAGIC
# MAGIC One row for each sender, receiver, queue and way. `tcp_1801` is one hop between two queue managers, `rpc_read` a remote
# MAGIC reader, `http` a message that came over HTTP.

# COMMAND ----------

flows = answer("estate_flows")
display(flows)
pairs = flows.groupBy("sender", "receiver").agg(F.sum("bytes").alias("bytes")).orderBy(F.desc("bytes"))
largest = pairs.na.fill("not seen", ["sender", "receiver"]).limit(40).toPandas()
if len(largest):
    display(px.density_heatmap(largest, x="receiver", y="sender", z="bytes", title="Bytes, the 40 largest pairs"))

# COMMAND ----------

# MAGIC %md
# MAGIC ## Hours
# MAGIC
# MAGIC Sendings by weekday and hour, in the time zone of the Spark session. An hour without sendings may be one that was not captured.

# COMMAND ----------

by_hour = answer("estate_hours").groupBy(
    F.weekday("start_at").alias("weekday"), F.hour("start_at").alias("hour")
)  # Monday is 0
busy = by_hour.agg(F.sum("sendings").alias("sendings")).orderBy("weekday", "hour")
display(busy)
cells = busy.toPandas()
if len(cells):
    display(
        px.density_heatmap(
            cells, x="hour", y="weekday", z="sendings", nbinsx=24, nbinsy=7, title="Sendings by hour and weekday"
        )
    )

# COMMAND ----------

# MAGIC %md
# MAGIC ## Machines

# COMMAND ----------

display(answer("estate_machines"))

# COMMAND ----------

# MAGIC %md
# MAGIC ## What a move needs
# MAGIC
# MAGIC Each queue against each target of `conf/targets`. `fits as far as the wire shows` is all that captures can say. A property
# MAGIC that was not seen has no verdict, and neither has what the target's documentation does not say.

# COMMAND ----------

verdicts = judge_queues([row.asDict(recursive=True) for row in queues.collect()], bundled_targets(), f"{days} days")
columns = (
    "queue string, target string, queue_verdict string, property string, verdict string, evidence string, "
    "change string, source string, as_of date"
)
judged = spark.createDataFrame(verdict_rows(verdicts), columns)
display(judged.groupBy("queue").pivot("target").agg(F.first("queue_verdict")).orderBy("queue"))

# COMMAND ----------

obstacles = judged.where("verdict IN ('does not fit', 'fits with a change')").orderBy("verdict", "target", "queue")
display(obstacles.select("target", "verdict", "property", "queue", "evidence", "change", "source", "as_of"))

# COMMAND ----------

# MAGIC %md
# MAGIC ## Capacity
# MAGIC
# MAGIC The slope of the daily maxima, with its 95 % interval, from 7 days with reports on. `no trend` means that the interval holds
# MAGIC 0. Quotas are not on the network: enter that of your queue managers above. Without one, 8 GiB are assumed (`quota_assumed`).
# MAGIC Queues and journals count against the quota of their queue manager, too.

# COMMAND ----------

trend = (
    "trend", "trend_days", "trend_bytes_per_day", "trend_low", "trend_high", "trend_quota_bytes", "quota_assumed",
    "trend_days_until_full", "trend_full_low", "trend_full_high",
)  # fmt: skip
messages = answer("depth_growth").select(F.lit("messages").alias("what"), "queue_manager", "queue", *trend)
journals = answer("journal_growth").select(F.lit("journal").alias("what"), "queue_manager", "queue", *trend)
every = answer("machines").select(
    F.lit("all queues").alias("what"), "queue_manager", F.lit(None).cast("string").alias("queue"), *trend
)
growth = messages.unionByName(journals).unionByName(every).where("trend_days > 0")
growth = growth.orderBy(F.asc_nulls_last("trend_days_until_full"), "queue_manager", "queue", "what")
display(growth)

# COMMAND ----------

history = table("gold.queue_history").where(F.lit(since).isNull() | (F.col("valid_from") >= F.lit(since)))
by_day = (
    history.where("bytes > 0").groupBy("queue", F.to_date("valid_from").alias("day")).agg(F.max("bytes").alias("bytes"))
)
largest = [
    row["queue"]
    for row in by_day.groupBy("queue")
    .agg(F.max("bytes").alias("most"))
    .orderBy(F.desc("most"), "queue")
    .limit(10)
    .collect()
]
levels = by_day.where(F.col("queue").isin(largest)).orderBy("queue", "day").toPandas()
if len(levels):
    display(
        px.line(levels, x="day", y="bytes", color="queue", markers=True, title="Daily maxima of the 10 largest queues")
    )

# COMMAND ----------

# MAGIC %md
# MAGIC ## Summary

# COMMAND ----------

totals = flows.agg(F.sum("messages").alias("messages"), F.sum("bytes").alias("bytes")).first()
print(f"{queues.count()} queues, {totals['messages'] or 0} messages and {totals['bytes'] or 0} bytes on all ways.")
for target in bundled_targets():
    of_target = [each for each in verdicts if each.target == target.name]
    print(
        f"{target.name}: {sum(bool(each.with_verdict('does not fit')) for each in of_target)} of {len(of_target)} queues do not fit."
    )
rising = growth.where("trend = 'rising'").first()
if rising:
    print(f"Full first: {rising['queue'] or rising['queue_manager']}, in {rising['trend_days_until_full']:.0f} days.")
