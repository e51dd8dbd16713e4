"""Users, projects, and the roles of users in projects."""

from __future__ import annotations

from uuid import uuid4

from django.contrib.auth.base_user import AbstractBaseUser, BaseUserManager
from django.contrib.auth.models import PermissionsMixin
from django.db import models
from django.utils import timezone

from cells.models import GlobalModel
from cloud.identity import roles

DOMAIN_ID = "default"
DOMAIN_NAME = "Default"


def new_id() -> str:
    """Return 32 hex digits, the form of Keystone's ids."""
    return uuid4().hex


class Project(GlobalModel):
    """An owner of servers, images and quotas."""

    id = models.CharField(max_length=32, primary_key=True, default=new_id, editable=False)
    name = models.CharField(max_length=64, unique=True)
    description = models.TextField(blank=True, default="")
    enabled = models.BooleanField(default=True)
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return self.name


class Users(BaseUserManager["User"]):
    """The manager by which Django creates users."""

    def create_user(self, name: str, password: str | None = None, **fields: object) -> User:
        """Create a user. Without a password the user cannot log in."""
        user = self.model(name=name, **fields)
        user.set_password(password)
        user.save(using=self._db)
        return user

    def create_superuser(self, name: str, password: str | None = None, **fields: object) -> User:
        """Create a user who may use the admin pages. To use the API the user still needs a role."""
        return self.create_user(name, password, **({"is_staff": True, "is_superuser": True} | fields))


class User(AbstractBaseUser, PermissionsMixin, GlobalModel):
    """A user who can log in: to the API with roles in projects, to the admin pages if staff."""

    id = models.CharField(max_length=32, primary_key=True, default=new_id, editable=False)
    name = models.CharField(max_length=255, unique=True)
    email = models.EmailField(blank=True, default="")
    description = models.TextField(blank=True, default="")
    default_project_id = models.CharField(max_length=64, blank=True, default="")  # a deleted one: tokens are unscoped
    is_active = models.BooleanField("enabled", default=True)  # type: ignore[misc]
    is_staff = models.BooleanField("may use the admin pages", default=False)
    revoked_before = models.DateTimeField(null=True, editable=False)  # older tokens are void
    created_at = models.DateTimeField(auto_now_add=True)

    objects = Users()
    USERNAME_FIELD = "name"
    EMAIL_FIELD = "email"
    REQUIRED_FIELDS = []

    def __str__(self) -> str:
        return self.name

    def set_password(self, raw_password: str | None) -> None:
        """Set the password, and void every token of the old one."""
        super().set_password(raw_password)
        self.revoke_tokens()

    def revoke_tokens(self) -> None:
        """Void all tokens issued until now; takes effect when the user is saved."""
        self.revoked_before = timezone.now()


class RoleAssignment(GlobalModel):
    """A user's role in a project."""

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="assignments")
    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="assignments")
    role = models.CharField(max_length=16, choices=[(name, name) for name in roles.NAMES])

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=("user", "project", "role"), name="one_assignment_per_role"),
        )

    def __str__(self) -> str:
        return f"{self.role} of {self.user_id} in {self.project_id}"


class RevokedToken(GlobalModel):
    """A token that was revoked before its expiry. The row is kept until then."""

    audit_id = models.CharField(max_length=22, primary_key=True)
    expires_at = models.DateTimeField(db_index=True)

    def __str__(self) -> str:
        return self.audit_id
