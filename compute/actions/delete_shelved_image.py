"""Delete the image of a shelved server that was deleted."""

from __future__ import annotations

from dataclasses import dataclass

from compute.actions.bases import shelve
from compute.operations.action import OPS, ActionParams, On, ServerAction, StepContext, StepSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteShelvedImageParams(ActionParams):
    """The parameters of the deletion."""

    image_id: str


class DeleteShelvedImage(ServerAction[DeleteShelvedImageParams]):
    """Opened where the server is deleted (`delete.py`); no API request asks for it."""

    name = "delete_shelved_image"
    steps = (StepSpec("delete_image", "conductor_delete_shelved_image", On.CONDUCTOR, OPS),)
    needs_host = False

    def delete_image(self, run: StepContext[DeleteShelvedImageParams]) -> None:
        """Delete the image. A missing image is success."""
        with run.fenced():
            shelve.delete_image(run.params.image_id)
