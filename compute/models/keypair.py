"""Public keys of users."""

from __future__ import annotations

from django.db import models

from cells.models import GlobalModel


class KeyPair(GlobalModel):
    """A public key that is put into servers. The private key is never stored."""

    user_id = models.CharField(max_length=64)
    name = models.CharField(max_length=255)
    type = models.CharField(max_length=8, default="ssh")  # ssh | x509
    public_key = models.TextField()
    fingerprint = models.CharField(max_length=128)
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ("name",)
        constraints = (models.UniqueConstraint(fields=("user_id", "name"), name="one_keypair_per_name"),)

    def __str__(self) -> str:
        return self.name
