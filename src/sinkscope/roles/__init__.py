"""Roles: what each sink does (idle, broadcast, carrier), with the evidence."""

from sinkscope.roles.find import LEAST, HeadRole, Roles, cost_of_roles, find_roles
from sinkscope.roles.verdict import ROLES, Estimate, Role, Rules

__all__ = ["LEAST", "ROLES", "Estimate", "HeadRole", "Role", "Roles", "Rules", "cost_of_roles", "find_roles"]
