"""databricks.yml against the published models of bundles, the rules of the CLI, and the project.

Properties of a workspace (machine types, the warehouse, what an identity may do) are not checked. The JSON schema of
the CLI is not kept here: its licence allows use with Databricks only. ``databricks bundle validate`` checks against it.
"""

import json
import re
import subprocess
import sys
import venv
import zipfile
from email.parser import Parser
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from databricks.bundles.dashboards import Dashboard
from databricks.bundles.jobs import Job
from databricks.bundles.schemas import Schema
from databricks.bundles.volumes import Volume

from bundles.databricks_bundle import BundleError, load, resolved, resource_id, tasks, wheel_tasks
from jobs import __main__ as command
from jobs.alerts import NO_ALERT
from jobs.apply_governance import configured_governance
from jobs.command_line.parsers import build_parser
from jobs.command_line.settings_file import load_config
from pipeline.alerts.episodes import ERROR
from pipeline.privacy.governance import LAYER_COMMENTS
from schemas import catalog
from tools.write_bundle_dashboard import bundle_dashboard

MODELS = {"jobs": Job, "dashboards": Dashboard, "schemas": Schema, "volumes": Volume}
PRINCIPAL = "00000000-1111-2222-3333-444444444444"
WORKSPACE = {
    "workspace.file_path": "/Workspace/Users/somebody/.bundle/files",
    "var.warehouse": "abcdef0123456789",
    "var.service_principal": PRINCIPAL,
}
SCHEMAS = {"dev": ("dev", "dev_some_body_msmq"), "prod": ("main", "msmq")}  # catalog, and schema of the volumes
JOB_PARAMETERS = {"what": "all", "before": "2024-05-01"}


@pytest.fixture(scope="module")
def bundle(project):
    return load(project / "databricks.yml")


@pytest.fixture(scope="module", params=SCHEMAS)
def target(request):
    return request.param


@pytest.fixture(scope="module")
def resources(bundle, target):
    return resolved(bundle, target, WORKSPACE)


def test_every_resource_is_what_the_published_models_take(resources):
    for kind, model in MODELS.items():
        assert resources[kind]
        for name, values in resources[kind].items():
            made = model.from_dict(values).as_dict()
            assert made.keys() <= values.keys(), f"{kind}.{name}"
    assert set(resources) == {*MODELS, "target"}


def test_the_models_refuse_what_they_do_not_know(resources):
    job = resources["jobs"]["msmq"]
    with pytest.raises(ValueError, match="schedul"):
        Job.from_dict({**job, "schedul": job["schedule"]})


def test_what_is_not_defined_is_found(bundle):
    with pytest.raises(BundleError, match=r"workspace\.file_path"):
        resolved(bundle, "dev", {})
    jobs = {**bundle["resources"]["jobs"], "other": {"name": "${resources.volumes.other.name}", "tasks": []}}
    with pytest.raises(BundleError, match=r"resources\.volumes\.other"):
        resolved({**bundle, "resources": {**bundle["resources"], "jobs": jobs}}, "prod", WORKSPACE)


def test_the_default_target_is_for_development_and_shares_nothing_with_production(bundle):
    assert set(bundle["targets"]) == set(SCHEMAS)
    found = {target: resolved(bundle, target, WORKSPACE) for target in SCHEMAS}
    assert [target for target in SCHEMAS if found[target]["target"].get("default")] == ["dev"]
    modes = {target: found[target]["target"]["mode"] for target in SCHEMAS}
    assert modes == {"dev": "development", "prod": "production"}
    texts = {target: json.dumps({kind: found[target][kind] for kind in MODELS}) for target in SCHEMAS}
    assert not re.search(r"/Volumes/main|\bmain\b|(?<!some_body_)msmq_(bronze|silver|gold)", texts["dev"])
    assert not re.search(r"/Volumes/dev|dev_some_body", texts["prod"])


def test_schemas_and_volumes_have_the_names_of_the_target(resources, target):
    """The CLI puts the developer's name before the names of schemas in development mode."""
    place, name = SCHEMAS[target]
    layers = {table.layer for table in catalog.ALL_TABLES}
    names = {key: f"{each['catalog_name']}.{each['name']}" for key, each in resources["schemas"].items()}
    assert names == {"work": f"{place}.{name}"} | {layer: f"{place}.{name}_{layer}" for layer in layers}
    assert volumes(resources) == {f"/Volumes/{place}/{name}/{each}" for each in ("captures", "snapshots", "work")}


def test_the_schemas_of_tables_have_the_comments_that_governance_gives_them(resources):
    """Otherwise each deployment and each run of apply_governance would change them."""
    assert {layer: resources["schemas"][layer]["comment"] for layer in LAYER_COMMENTS} == LAYER_COMMENTS


def volumes(resources):
    """The paths of the volumes: ComputeVolumePath of config/resources/volume.go."""
    return {
        f"/Volumes/{each['catalog_name']}/{each['schema_name']}/{each['name']}"
        for each in resources["volumes"].values()
    }


def test_the_guides_commands_are_those_of_the_default_target(bundle, project):
    text = (project / "docs" / "guides" / "databricks.md").read_text(encoding="utf-8")
    found = resolved(bundle, "dev", WORKSPACE)
    (place,) = set(re.findall(r"dbfs:(/Volumes/[^\s/]+/[^\s/]+/[^\s/]+)/", text))
    assert place.replace("USER", "some_body") in volumes(found)
    assert set(re.findall(r"databricks bundle run (?:-t \w+ )?(\w+)", text)) <= found["jobs"].keys()
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", text.partition("## Variables")[2], re.MULTILINE))
    assert rows.keys() == bundle["variables"].keys()


def arguments_of(task):
    """The name of a task's job and its arguments, with values for the parameters of the job."""
    job, *arguments = task["python_wheel_task"]["parameters"]
    return job, [
        re.sub(r"^{{job\.parameters\.(\w+)}}$", lambda found: JOB_PARAMETERS[found[1]], each) for each in arguments
    ]


def test_every_task_is_a_job_of_ours_with_arguments_that_it_takes(resources, project):
    found = wheel_tasks(resources)
    assert found
    for name, task in found.items():
        job, arguments = arguments_of(task)
        assert job in command.list_jobs(), name
        assert not [each for each in arguments if "{" in each], name
        taken = build_parser(job).parse_args(arguments)
        config = load_config(project / Path(taken.conf).relative_to(WORKSPACE["workspace.file_path"]), taken.overrides)
        assert config.lake.catalog == resources["schemas"]["work"]["catalog_name"]
        for layer in {table.layer for table in catalog.ALL_TABLES}:
            assert config.lake.prefix + layer == resources["schemas"][layer]["name"]
        given = [*getattr(taken, "captures", []), *getattr(taken, "snapshots", []), taken.lake]
        places = {"/".join(each.split("/")[:5]) for each in map(str, (*given, config.privacy.scratch_folder))}
        assert places <= volumes(resources), name
        defined = {each["name"] for each in resources["jobs"][name.partition(".")[0]].get("parameters", [])}
        assert set(re.findall(r"{{job\.parameters\.(\w+)}}", json.dumps(task))) <= defined, name


def test_tasks_name_clusters_tasks_and_jobs_that_are_there(resources):
    for name, job in resources["jobs"].items():
        clusters = {each["job_cluster_key"] for each in job.get("job_clusters", [])}
        before = set()
        for task in job["tasks"]:
            assert {each["task_key"] for each in task.get("depends_on", [])} <= before, name
            before.add(task["task_key"])
            assert ("job_cluster_key" in task) == ("python_wheel_task" in task or "notebook_task" in task)
            assert task.get("job_cluster_key") in {*clusters, None}
            if "run_job_task" in task:
                there = {resource_id(resources, "jobs", other) for other in resources["jobs"]}
                assert task["run_job_task"]["job_id"] in there


def states(resources, ended):
    """Return how the tasks of job msmq end, by ``run_if`` and conditions, and how the job ends.

    ``ended`` says of tasks whether they succeed, and has the task value. Rules: docs.databricks.com/jobs/run-if.html
    and /jobs/if-else.html, read 2026-11. A task whose dependencies did not all succeed has failed, unless it runs with
    ALL_DONE. One whose condition is not met is excluded, which counts as success. The job fails if a task fails that
    no other depends on.
    """
    found, outcomes, inner = {}, {}, set()
    for task in resources["jobs"]["msmq"]["tasks"]:
        key, needs = task["task_key"], task.get("depends_on", [])
        inner |= {each["task_key"] for each in needs}
        if task.get("run_if") != "ALL_DONE" and not all(found[each["task_key"]] for each in needs):
            found[key] = False
        elif any(each.get("outcome") not in (None, outcomes.get(each["task_key"])) for each in needs):
            found[key] = True
        elif "condition_task" in task:
            condition = task["condition_task"]
            left = condition["left"].replace("{{tasks.alerts.values.worst_alert}}", ended["worst_alert"])
            assert condition["op"] == "EQUAL_TO"
            outcomes[key], found[key] = str(left == condition["right"]).lower(), True
        else:
            found[key] = ended.get(key, True)
    return found, all(found[key] for key in found.keys() - inner)


def test_a_broken_pipeline_turns_the_job_red_and_an_alert_only_if_asked(bundle, resources):
    assert states(resources, {"worst_alert": NO_ALERT})[1]
    assert states(resources, {"worst_alert": ERROR})[1]
    for broken in ("run_all", "check_quality", "alerts"):
        found, succeeded = states(resources, {"worst_alert": NO_ALERT, broken: False})
        assert not succeeded, broken
    found, _ = states(resources, {"worst_alert": ERROR, "run_all": False})
    assert (found["check_quality"], found["alerts"], found["report_errors"]) == (True, True, True)  # they ran
    assert not states(resources, {"worst_alert": ERROR, "report_errors": False})[1]
    levels = {}
    for level in (bundle["variables"]["fail_on_alert"]["default"], ERROR):
        found = wheel_tasks(resolved(bundle, "prod", {**WORKSPACE, "var.fail_on_alert": level}))
        job, arguments = arguments_of(found["msmq.report_errors"])
        levels[level] = build_parser(job).parse_args(arguments).fail_on
        assert build_parser(job).parse_args(arguments_of(found["msmq.alerts"])[1]).fail_on == "never"
    assert levels == {"never": "never", ERROR: ERROR}


def test_the_task_value_that_the_condition_reads_is_the_one_that_is_set(resources):
    job, arguments = arguments_of(wheel_tasks(resources)["msmq.alerts"])
    name = build_parser(job).parse_args(arguments).task_value
    (condition,) = (task for name, task in tasks(resources) if name == "msmq.error_is_active")
    assert condition["condition_task"]["left"] == f"{{{{tasks.alerts.values.{name}}}}}"
    assert condition["condition_task"]["right"] == ERROR


def test_what_is_repeated_after_a_failure_changes_nothing_twice(resources):
    repeated = {name for name, task in wheel_tasks(resources).items() if task.get("max_retries")}
    assert repeated == {"msmq.run_all", "msmq.alerts", "forget.list", "forget.forget", "maintain.maintain"} | {
        "governance.apply_governance"
    }


def test_data_is_erased_only_if_the_parameter_says_so(resources):
    job = resources["jobs"]["forget"]
    listing, condition, erasing = job["tasks"]
    for task, is_dry in ((listing, True), (erasing, False)):
        name, arguments = arguments_of(task)
        assert build_parser(name).parse_args(arguments).dry_run == is_dry
    defaults = {each["name"]: each["default"] for each in job["parameters"]}
    assert condition["condition_task"] == {"left": "{{job.parameters.erase}}", "op": "EQUAL_TO", "right": "yes"}
    assert defaults["erase"] != "yes"
    name, arguments = arguments_of(erasing)
    with pytest.raises(SystemExit):  # without a day
        build_parser(name).parse_args([defaults["before"] if each == "2024-05-01" else each for each in arguments])
    assert erasing["depends_on"] == [{"task_key": condition["task_key"], "outcome": "true"}]


def governance_of(bundle, target, project, **given):
    """What the governance job of a target asks for, with its schemas."""
    found = resolved(bundle, target, WORKSPACE | {f"var.{name}": value for name, value in given.items()})
    job, arguments = arguments_of(wheel_tasks(found)["governance.apply_governance"])
    config = load_config(project / "conf" / "databricks.yml", build_parser(job).parse_args(arguments).overrides)
    return configured_governance(config), found


def test_governance_is_for_the_schemas_of_the_target_and_nobody_who_is_not_named(bundle, project, target):
    principal = PRINCIPAL if target == "prod" else ""
    wanted, found = governance_of(bundle, target, project, service_principal=principal)
    place, name = SCHEMAS[target]
    assert (wanted.catalog, wanted.prefix, wanted.view_schema) == (place, f"{name}_", f"{name}_shared")
    assert wanted.view_schema not in {each["name"] for each in found["schemas"].values()}
    assert (wanted.view_readers, wanted.owner) == ((), None)
    assert wanted.readers == ((principal,) if principal else ())
    named = {"readers": "msmq-engineers", "view_readers": "operations, data analysts", "owner": "msmq-owners"}
    wanted, _ = governance_of(bundle, target, project, **named)
    assert (wanted.readers, wanted.owner) == (("msmq-engineers",), "msmq-owners")
    assert wanted.view_readers == ("operations", "data analysts")


def test_governance_grants_no_more_on_the_schemas_of_tables_than_a_deployment_does(bundle, project):
    """Otherwise each deployment would take it back."""
    wanted, found = governance_of(bundle, "prod", project, readers="msmq-engineers")
    for layer in LAYER_COMMENTS:
        deployed = {each["principal"]: set(each["privileges"]) for each in found["schemas"][layer]["grants"]}
        for statement in wanted.statements({table: table.names for table in catalog.ALL_TABLES}):
            granted = [
                each for each in statement.effects if each[0] == "privilege" and each[1] == wanted.prefix + layer
            ]
            for _, _, principal, privilege in granted:
                assert privilege.replace(" ", "_") in deployed[principal]


def test_the_variables_choose_what_starts_the_job(bundle, resources, target):
    def started(**given):
        jobs = resolved(bundle, target, WORKSPACE | {f"var.{name}": value for name, value in given.items()})["jobs"]
        return jobs["msmq"]["schedule"]["pause_status"], jobs["msmq_file_arrival"]["trigger"]["pause_status"]

    assert started() == ("PAUSED" if target == "dev" else "UNPAUSED", "PAUSED")
    assert started(schedule_status="PAUSED", file_arrival_status="UNPAUSED") == ("PAUSED", "UNPAUSED")
    job = resources["jobs"]["msmq_file_arrival"]
    assert job["trigger"]["file_arrival"]["url"].removesuffix("/") in volumes(resources)
    assert job["trigger"]["file_arrival"]["url"].endswith("/")  # docs.databricks.com/jobs/file-arrival-triggers
    assert [task["run_job_task"]["job_id"] for task in job["tasks"]] == [resource_id(resources, "jobs", "msmq")]


def test_production_runs_as_a_service_principal_that_may_do_what_the_jobs_do(bundle):
    found = resolved(bundle, "prod", WORKSPACE)
    assert {job["run_as"]["service_principal_name"] for job in found["jobs"].values()} == {PRINCIPAL}
    levels = {"service_principal_name": "CAN_MANAGE_RUN", "group_name": "CAN_VIEW"}
    for job in found["jobs"].values():
        assert {kind: each["level"] for each in job["permissions"] for kind in levels if kind in each} == levels
    for schema in found["schemas"].values():
        assert [each["principal"] for each in schema["grants"]] == [PRINCIPAL]  # nobody else, if nobody is named
        assert "ALL_PRIVILEGES" in schema["grants"][0]["privileges"]
    readers = resolved(bundle, "prod", {**WORKSPACE, "var.readers": "analysts"})["schemas"]["gold"]["grants"][1]
    assert readers == {"principal": "analysts", "privileges": ["USE_SCHEMA", "SELECT", "READ_VOLUME"]}
    kept = [each["lifecycle"]["prevent_destroy"] for kind in ("schemas", "volumes") for each in found[kind].values()]
    assert set(kept) == {True}
    with pytest.raises(BundleError, match="exactly one identity"):
        resolved(bundle, "prod", {**WORKSPACE, "var.service_principal": ""})
    assert "${workspace" not in found["target"]["workspace"]["root_path"]


def test_every_notebook_is_a_task_whose_widgets_the_job_sets(resources, project, target):
    """Databricks passes the parameters of a job to the widgets of its notebooks, and has the wheel on the cluster."""
    job = resources["jobs"]["msmq_notebooks"]
    paths = [task["notebook_task"]["notebook_path"] for task in job["tasks"]]
    assert sorted(paths) == sorted(f"notebooks/{path.name}" for path in (project / "notebooks").glob("*.py"))
    assert all(task["libraries"] == [{"whl": "dist/*.whl"}] for task in job["tasks"])
    given = {each["name"]: each["default"] for each in job["parameters"]}
    widgets = {
        name: default
        for path in paths
        for name, default in re.findall(r'widgets\.text\("(\w+)", "([^"]*)"', (project / path).read_text())
    }
    assert given.keys() < widgets.keys()
    place, schema = SCHEMAS[target]
    assert given == {"catalog": place, "prefix": f"{schema}_", "captures": f"/Volumes/{place}/{schema}/captures"}
    if target == "prod":  # what the notebooks have when they are opened by hand
        assert given == {name: widgets[name] for name in given}


def test_the_notebooks_run_after_the_tables_are_written_if_a_variable_says_so(bundle):
    for value in ("true", "false"):
        found = resolved(bundle, "dev", {**WORKSPACE, "var.run_notebooks": value})
        by_key = {task["task_key"]: task for task in found["jobs"]["msmq"]["tasks"]}
        condition = by_key["notebooks_wanted"]
        assert (condition["condition_task"]["left"] == condition["condition_task"]["right"]) == (value == "true")
        assert condition["depends_on"] == [{"task_key": "run_all"}, {"task_key": "check_quality"}]
        assert by_key["notebooks"]["run_job_task"] == {"job_id": resource_id(found, "jobs", "msmq_notebooks")}
        assert by_key["notebooks"]["depends_on"] == [{"task_key": "notebooks_wanted", "outcome": "true"}]


def test_every_job_has_bounds_and_one_run_at_a_time(resources):
    for name, job in resources["jobs"].items():
        assert job["max_concurrent_runs"] == 1, name
        assert job["queue"] == {"enabled": True}, name
        assert job["tags"]["project"] == "msmq", name
        assert "on_failure" in job["email_notifications"], name
        if "job_clusters" in job:
            assert job["timeout_seconds"] > 0, name
    for name in ("msmq", "maintain"):
        fields = resources["jobs"][name]["schedule"]["quartz_cron_expression"].split()
        assert len(fields) in (6, 7)
        assert "?" in (fields[3], fields[5])  # Quartz wants one of the two days left open


def test_the_dashboard_is_what_the_code_makes_over_the_schemas_of_the_target(resources, project, target):
    assert (project / "conf" / "dashboard.yml").read_text(encoding="utf-8") == bundle_dashboard(), "run make dashboard"
    definition = json.loads(resources["dashboards"]["msmq"]["serialized_dashboard"])
    text = "".join(line for each in definition["datasets"] for line in each["queryLines"])
    place, schema = SCHEMAS[target]
    named = re.findall(r"`([^`]+)`\.`([^`]+)`\.`([^`]+)`", text)
    assert named
    tables = {(place, f"{schema}_{table.layer}", table.name) for table in catalog.ALL_TABLES}
    assert set(named) <= tables
    assert "${" not in text


@pytest.fixture(scope="module")
def wheel(project, tmp_path_factory):
    """The wheel, built by the bundle's own command."""
    folder = tmp_path_factory.mktemp("wheel")
    _, *build = load(project / "databricks.yml")["artifacts"]["wheel"]["build"].split()
    done = subprocess.run(
        [sys.executable, *build, "-d", str(folder)], cwd=project, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (made,) = folder.glob("*.whl")
    return made


def test_the_wheel_holds_the_entry_points_and_leaves_spark_to_the_cluster(bundle, wheel):
    with zipfile.ZipFile(wheel) as packed:
        (place,) = (name for name in packed.namelist() if name.endswith("/METADATA"))
        about = Parser().parsestr(packed.read(place).decode())
        scripts = packed.read(place.replace("METADATA", "entry_points.txt")).decode()
    points = dict(line.split(" = ") for line in scripts.splitlines() if " = " in line)
    for name, task in wheel_tasks(resolved(bundle, "prod", WORKSPACE)).items():
        wheel_task = task["python_wheel_task"]
        assert wheel_task["package_name"] == wheel.name.split("-")[0], name
        entry_point = EntryPoint(wheel_task["entry_point"], points[wheel_task["entry_point"]], "console_scripts")
        assert entry_point.load() is command.run_databricks_task
        assert [each["whl"] for each in task["libraries"]] == ["dist/*.whl"]
    always = [each for each in about.get_all("Requires-Dist") if "extra ==" not in each]
    assert always
    assert [each for each in always if re.match(r"(pyspark|delta-spark)", each)] == []


@pytest.mark.long
def test_in_a_clean_environment_the_wheel_gives_every_job(bundle, wheel, project, tmp_path):
    """Only the packages are shared with this environment; the project comes from the wheel."""
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv" / "bin" / "python"
    command_line = [str(python), "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"]
    site = Path(subprocess.run(command_line, check=True, capture_output=True, text=True).stdout.strip())
    here = Path(sys.modules["pyarrow"].__file__).parents[1]
    (site / "packages.pth").write_text(f"{here}\n")
    install = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--target", str(site), str(wheel)]
    subprocess.run(install, check=True, capture_output=True, cwd=tmp_path)
    code = (
        "import sys; from importlib.metadata import distribution; "
        "name, entry, *sys.argv[1:] = sys.argv[1:]; "
        "(point,) = [each for each in distribution(name).entry_points if each.name == entry]; point.load()()"
    )
    for name, task in wheel_tasks(resolved(bundle, "prod", WORKSPACE)).items():
        wheel_task = task["python_wheel_task"]
        start = [
            str(python),
            "-c",
            code,
            wheel_task["package_name"],
            wheel_task["entry_point"],
            wheel_task["parameters"][0],
        ]
        done = subprocess.run([*start, "--help"], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert wheel_task["parameters"][0] in done.stdout, name
    where = [str(python), "-c", "import jobs, udfs; print(jobs.__file__, udfs.__file__)"]
    found = subprocess.run(where, cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    assert str(project) not in found
