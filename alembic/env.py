"""Runs migrations on the connection of `studydb.db.migrate`, in the transaction that it began."""

from alembic import context

connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    version_table="studydb_version",
    render_as_batch=connection.dialect.name == "sqlite",
    transactional_ddl=True,
)
context.run_migrations()
