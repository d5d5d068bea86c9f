"""The facade `Tavern`, and the composition of all parts."""

from tavern_core.host.facade import Plugin as Plugin
from tavern_core.host.facade import Tavern as Tavern
