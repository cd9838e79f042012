# isort: skip_file

from .find import (
    LEAST as LEAST,
    cost_of_roles as cost_of_roles,
    find_roles as find_roles,
    find_roles_on as find_roles_on,
)
from .head_roles import HeadRole as HeadRole, Roles as Roles, read_roles as read_roles, roles_for as roles_for
from .probes import Probe as Probe
from .transplants import (
    Transplant as Transplant,
    Transplants as Transplants,
    transplant as transplant,
    transplant_on as transplant_on,
)
from .head_roles import NEEDS as NEEDS, ROLES as ROLES, Estimate as Estimate, Role as Role, Rules as Rules
