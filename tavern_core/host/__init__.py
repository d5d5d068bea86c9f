"""The facade `Tavern`, and the one place where all parts are put together."""

from tavern_core.host.facade import Plugin as Plugin
from tavern_core.host.facade import Tavern as Tavern
