"""databricks.yml against the published models of bundles, and against the project: every name in it exists.

Properties of a workspace (machine types, the warehouse, permissions) are not checked.
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

from bundles.databricks_bundle import UnresolvedError, load, resolved, wheel_tasks
from jobs import __main__ as command
from jobs.command_line.parsers import build_parser
from jobs.config import Config
from pipeline.dashboards.databricks import dashboard_json
from schemas import catalog
from schemas.table import quoted

MODELS = {"jobs": Job, "dashboards": Dashboard, "schemas": Schema, "volumes": Volume}
WORKSPACE = {"workspace.file_path": "/Workspace/Users/somebody/.bundle/files", "var.warehouse": "abcdef0123456789"}
TARGETS = ("dev", "prod")


@pytest.fixture(scope="module")
def bundle(project):
    return load(project / "databricks.yml")


@pytest.mark.parametrize("target", TARGETS)
def test_every_resource_is_what_the_published_models_take(bundle, target):
    resources = resolved(bundle, target, WORKSPACE)
    for kind, model in MODELS.items():
        assert resources[kind]
        for name, values in resources[kind].items():
            made = model.from_dict(values).as_dict()
            assert made.keys() <= values.keys(), f"{kind}.{name}"
    assert set(resources) == {*MODELS, "target"}


def test_the_models_refuse_what_they_do_not_know(bundle):
    job = resolved(bundle, "dev", WORKSPACE)["jobs"]["msmq"]
    with pytest.raises(ValueError, match="schedul"):
        Job.from_dict({**job, "schedul": job["schedule"]})


def test_what_is_not_defined_is_found(bundle):
    with pytest.raises(UnresolvedError, match=r"workspace\.file_path"):
        resolved(bundle, "dev", {})


def test_targets_do_not_share_a_catalog_and_one_is_the_default(bundle):
    assert set(bundle["targets"]) == set(TARGETS)
    found = {target: resolved(bundle, target, WORKSPACE) for target in TARGETS}
    assert len({each["schemas"]["work"]["catalog_name"] for each in found.values()}) == len(TARGETS)
    assert [target for target in TARGETS if found[target]["target"].get("default")] == ["dev"]
    assert {target: found[target]["target"]["mode"] for target in TARGETS} == {
        "dev": "development",
        "prod": "production",
    }


@pytest.mark.parametrize("target", TARGETS)
def test_every_task_is_a_job_of_ours_with_arguments_that_it_takes(bundle, project, target):
    resources = resolved(bundle, target, WORKSPACE)
    volumes = {
        f"/Volumes/{each['catalog_name']}/{each['schema_name']}/{each['name']}"
        for each in resources["volumes"].values()
    }
    found = wheel_tasks(resources)
    assert found
    for name, task in found.items():
        job, *arguments = task["python_wheel_task"]["parameters"]
        assert job in command.list_jobs(), name
        arguments = ["all" if each == "{{job.parameters.what}}" else each for each in arguments]
        assert not [each for each in arguments if "{" in each], name
        taken = build_parser(job).parse_args(arguments)
        config = Config.load(project / Path(taken.conf).relative_to(WORKSPACE["workspace.file_path"]), taken.overrides)
        assert config.lake.catalog == resources["schemas"]["work"]["catalog_name"]
        assert config.lake.prefix == f"{resources['schemas']['work']['name']}_"
        given = [*getattr(taken, "captures", []), *getattr(taken, "snapshots", []), taken.lake]
        assert {"/".join(each.split("/")[:5]) for each in given} <= volumes, name
    clusters = {each["job_cluster_key"] for job in resources["jobs"].values() for each in job["job_clusters"]}
    assert {task["job_cluster_key"] for job in resources["jobs"].values() for task in job["tasks"]} <= clusters


@pytest.mark.parametrize("target", TARGETS)
def test_every_notebook_is_a_task_whose_widgets_the_job_sets(bundle, project, target):
    """Databricks passes the parameters of a job to the widgets of its notebooks, and has the wheel on the cluster."""
    resources = resolved(bundle, target, WORKSPACE)
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
    if target == "prod":  # what the notebooks have when they are opened by hand
        assert given == {name: widgets[name] for name in given}


def test_the_schedule_is_of_seven_fields_at_most_and_one_run_is_at_a_time(bundle):
    for name, job in resolved(bundle, "prod", WORKSPACE)["jobs"].items():
        assert job["max_concurrent_runs"] == 1, name
    job = resolved(bundle, "prod", WORKSPACE)["jobs"]["msmq"]
    fields = job["schedule"]["quartz_cron_expression"].split()
    assert len(fields) in (6, 7)
    assert "?" in (fields[3], fields[5])  # Quartz wants one of the two days left open


def test_the_dashboard_is_what_the_code_makes_over_the_bundles_schemas(bundle, project):
    schema = bundle["variables"]["schema"]["default"]
    path = bundle["resources"]["dashboards"]["msmq"]["file_path"]

    class Named:
        def sql_name(self, table):
            return f"{quoted(f'{schema}_{table.layer}')}.{quoted(table.name)}"

    assert (project / path).read_text() == dashboard_json(Named()), "run make dashboard"
    text = "".join(line for each in json.loads(dashboard_json(Named()))["datasets"] for line in each["queryLines"])
    named = set(re.findall(r"`msmq_(\w+)`\.`(\w+)`", text))
    assert named
    assert {f"{layer}.{table}" for layer, table in named} <= {str(table) for table in catalog.ALL_TABLES}


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
