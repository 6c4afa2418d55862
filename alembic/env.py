"""Run migrations on the connection, and in the transaction, that `studydb.db.migrate` opened."""

from alembic import context

connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    version_table="studydb_version",
    render_as_batch=connection.dialect.name == "sqlite",
    transactional_ddl=True,
)
context.run_migrations()
