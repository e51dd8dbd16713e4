"""Delete the image of a shelved server that was deleted."""

from __future__ import annotations

from compute.actions.bases import shelve
from compute.operations.action import OPS, On, ServerAction, StepContext, StepSpec


class DeleteShelvedImage(ServerAction[shelve.DeleteShelvedImageParams]):
    """Opened by `shelve.leave_image` where the server is deleted; no API request asks for it."""

    name = "delete_shelved_image"
    steps = (StepSpec("delete_image", "conductor_delete_shelved_image", On.CONDUCTOR, OPS),)
    needs_host = False

    def delete_image(self, run: StepContext[shelve.DeleteShelvedImageParams]) -> None:
        """Delete the image. A missing image is success."""
        with run.fenced():
            shelve.delete_image(run.params.image_id)
