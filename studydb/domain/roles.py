"""The roles of a database that several people share."""

from enum import StrEnum

from studydb.domain.text.display import with_article


class Role(StrEnum):
    """What a login may do: an owner does everything, a worker runs trials, a viewer only reads."""

    OWNER = "owner"
    WORKER = "worker"
    VIEWER = "viewer"

    @property
    def default_name(self) -> str:
        """The name that `studydb db roles` gives to this role in the database by default."""
        return f"studydb_{self}"

    @property
    def advice(self) -> str:
        """The advice for a login that lacks this role's rights."""
        return (
            f"The operation needs the rights of {with_article(self)}. Log in as a member of "
            f"{self.default_name}, or have an owner pipe the output of `studydb db roles "
            f"--member NAME={self}` to psql."
        )
