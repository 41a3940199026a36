# Databricks notebook source
# MAGIC %md
# MAGIC # Data quality
# MAGIC
# MAGIC Two different questions: *do the tables represent the captures correctly* (keys unique, nothing counted twice, nothing lost
# MAGIC between layers), and *how much was captured*. The first has rules that must hold. The second has shares, which tell how far
# MAGIC to trust an answer.

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
    "bronze.capture_files",
    "bronze.rpc_calls",
    "gold.receive_attempts",
    "gold.quality_results",
    "gold.coverage",
    "silver.remote_read_calls",
    "bronze.quarantine",
)
print(table.describe_missing())

# COMMAND ----------

# MAGIC %md
# MAGIC ## Rules
# MAGIC
# MAGIC Three of the rules, written as queries. Each of these numbers must be 0.

# COMMAND ----------

captures, calls = table("bronze.capture_files"), table("bronze.rpc_calls")
parts = F.col("packets_used") + F.col("packets_binary_protocol") + F.col("packets_damaged") + F.col("packets_other")
violations = {
    "captures whose packets do not add up": captures.where(parts != F.col("packets")).count(),
    "calls with a duplicate key": calls.groupBy("call_key").count().where("count > 1").count(),
    "attempts that end before they start": table("gold.receive_attempts").where("ended_at < started_at").count(),
}
display(spark.createDataFrame(list(violations.items()), "rule string, rows bigint"))

# COMMAND ----------

# MAGIC %md
# MAGIC ## Quality results
# MAGIC
# MAGIC `gold.quality_results` has the result of every check of every run: what is expected, in words and as a limit, what was
# MAGIC observed, and the keys of rows that failed. It is empty if no checks were run.

# COMMAND ----------

results = table("gold.quality_results")
told = ("severity", "success", "description", "limits", "evaluated", "unexpected", "observed", "failed_keys")
last = results.groupBy("table", "expectation").agg(F.max_by(F.struct(*told), "run_at").alias("last"))
display(last.select("table", "expectation", "last.*").orderBy("success", "severity", "table"))
runs = results.groupBy("run_at", "severity").agg(F.count_if(~F.col("success")).alias("failed")).orderBy("run_at")
display(px.bar(runs.toPandas(), x="run_at", y="failed", color="severity", title="Failed checks by run"))

# COMMAND ----------

# MAGIC %md
# MAGIC ## Coverage
# MAGIC
# MAGIC `gold.coverage` counts what was captured and what is missing, by hour, server and layer. A share is a measure divided by the
# MAGIC total of its layer.

# COMMAND ----------

coverage = table("gold.coverage").groupBy("layer", "measure").agg(F.sum("value").alias("value"))
display(coverage.orderBy("layer", F.desc("value")))

# COMMAND ----------

gap_measures = ("calls_half_seen", "sealed", "calls_unbound")
rpc = (
    table("gold.coverage")
    .where("layer = 'rpc'")
    .groupBy("hour", "server_address")
    .agg(
        F.sum(F.when(F.col("measure") == "calls", F.col("value"))).alias("calls"),
        F.coalesce(F.sum(F.when(F.col("measure").isin(*gap_measures), F.col("value"))), F.lit(0)).alias("not_known"),
    )
    .orderBy("hour", "server_address")
)
display(rpc)
shares = rpc.toPandas()
if len(shares):
    shares["share"] = shares["not_known"] / shares["calls"]
    display(
        px.bar(
            shares,
            x="server_address",
            y="share",
            color="hour",
            barmode="group",
            title="Share of calls with missing parts",
        )
    )

# COMMAND ----------

# MAGIC %md
# MAGIC ## Decoding errors
# MAGIC
# MAGIC A stub that cannot be decoded has a row with the error and its offset; the call itself is kept.

# COMMAND ----------

errors = table("silver.remote_read_calls").select("method", F.explode("errors").alias("error"))
display(errors.groupBy("method", "error.code", "error.field").count().orderBy(F.desc("count")))

# COMMAND ----------

quarantine = table("bronze.quarantine")
display(quarantine.groupBy("reason").agg(F.count("*").alias("pieces"), F.sum("size_bytes").alias("bytes")))
