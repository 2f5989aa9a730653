"""``zkaudit export``."""

from __future__ import annotations

import json

import click

from zkaudit.commands.inputs import master_option, spark_session
from zkaudit.errors import AuditError
from zkconsumer.console.exclusive import at_most_one, no_effect


def _settings(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for value in values:
        name, equals, text = value.partition("=")
        if not name or not equals:
            raise click.BadParameter(f"{value!r} is not KEY=VALUE")
        found[name] = text
    return found


@click.command("export")
@click.argument("out", type=click.Path(exists=True, file_okay=False))
@click.option(
    "--to",
    "place",
    metavar="PLACE",
    help="Directory for the tables: a path, or a URL that Spark can write (s3a:, gs:, abfss:, "
    "hdfs:).",
)
@click.option(
    "--catalog",
    metavar="NAME",
    help="Instead of --to: write the tables to this database (DATABASE or CATALOG.DATABASE).",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(("parquet", "delta", "iceberg")),
    default="parquet",
    show_default=True,
    help="Format of the tables. delta and iceberg need their jars and settings in the Spark "
    "session.",
)
@click.option("--append", is_flag=True, help="Append to existing tables.")
@click.option("--overwrite", is_flag=True, help="Replace existing tables.")
@click.option(
    "--run-id",
    metavar="ID",
    help="Value of the column run_id. With --append, a value that is already in a table is "
    "an error.  [default: time and a random number]",
)
@click.option(
    "--conf",
    "settings",
    metavar="KEY=VALUE",
    multiple=True,
    callback=_settings,
    help="A Spark setting, as for spark-submit; may be repeated.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
@master_option
def export_command(
    out: str,
    place: str | None,
    catalog: str | None,
    form: str,
    append: bool,
    overwrite: bool,
    run_id: str | None,
    settings: dict[str, str],
    as_json: bool,
    master: str,
) -> None:
    """Write the tables of an audit to a data lake or a catalog.

    OUT is the directory of a finished audit. Each table is PLACE/TABLE or NAME.TABLE, with
    two more columns: run_id and run_time. The table `runs` has one row for each complete export,
    with the audit's summary as JSON.
    """
    if place is None and catalog is None:
        raise click.UsageError("name the target with --to or --catalog")
    if place is not None and catalog is not None:
        at_most_one(("--to", "--catalog"))
    if append and overwrite:
        at_most_one(("--append", "--overwrite"))
    if run_id is not None and not run_id.strip():
        raise click.BadParameter("is empty", param_hint="--run-id")
    if master == "submit":
        no_effect("--master submit", "settings")
    from zkaudit.job.export import Mode, Target, export
    from zkaudit.job.place import finished

    finished(out)  # Spark takes seconds to start
    target = Target(place.rstrip("/") if place is not None else None, catalog, form)
    mode: Mode = "append" if append else "overwrite" if overwrite else "create"
    with spark_session(master, settings=settings) as spark:
        if catalog is not None and "." not in catalog:
            _check_catalog(spark.conf.get("spark.sql.catalogImplementation"), catalog)
        done = export(spark, out, target, mode, run_id)
    result = {"run_id": done.run_id, "run_time": done.run_time.isoformat()}
    if as_json:
        click.echo(json.dumps(result | {"to": place, "catalog": catalog, "tables": done.rows}))
        return
    for name, rows in done.rows.items():
        click.echo(f"{rows:12,}  {target.name(name)}")
    click.echo(f"run {done.run_id} at {done.run_time:%Y-%m-%d %H:%M:%S}Z")


def _check_catalog(kind: str | None, catalog: str) -> None:
    if kind == "in-memory":
        raise AuditError(
            f"--catalog {catalog}: the session's catalog is lost when the command ends: use a "
            "metastore (--conf spark.sql.catalogImplementation=hive), or CATALOG.DATABASE"
        )
