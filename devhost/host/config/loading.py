"""Loads the configuration in a child process, so that this one never has what only that needs.

The child has limits of its own for memory and CPU time. What it needs of them is a problem of the
file; what else ends it is none, and may pass.
"""

import contextlib
import pickle
from collections.abc import Mapping
from dataclasses import is_dataclass
from io import BytesIO
from typing import Any, Final

from devhost.allocation.policy import Policy
from devhost.host.config.child import LoadingChild, UnloadableError
from devhost.loading.child import LoadAnswer, LoadRequest
from devhost.loading.loaded import Loaded, unusable
from devhost.model.config import Config, Resource

_VALUES: Final = ("devhost.model.", "devhost.errors", "devhost.loading.child")


class ChildLoader:
    """Loads successive contents of a file, each in a child. All methods block.

    A resource of which the file says the same as before keeps its value.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._known: dict[bytes, Resource] = {}

    @property
    def known(self) -> frozenset[bytes]:
        """The digests of the resources that it has."""
        return frozenset(self._known)

    def load(
        self,
        child: LoadingChild,
        raw: bytes,
        file: str,
        refused: Mapping[str, tuple[str, str]] | None = None,
    ) -> Loaded:
        """Check the content of a file.

        Args:
            child: Loads it, and has ended then.
            raw: What `read` returned.
            file: The file's name.
            refused: The key and the reason, by resource, why it is refused although it is valid.

        Raises:
            OSError: The child could not load it, for no fault of the content.
        """
        request = LoadRequest(raw, file, self._policy, self.known, refused)
        with contextlib.closing(child):
            try:
                raw_answer = child.answer(pickle.dumps(request, pickle.HIGHEST_PROTOCOL))
            except UnloadableError as error:
                return unusable(file, str(error))
        return self.taken(raw_answer)

    def taken(self, raw: bytes) -> Loaded:
        """Return what came of a request that knew what this object knows."""
        answer: LoadAnswer = _Values(BytesIO(raw)).load()
        if answer.digests is None:
            return Loaded(None, answer.problems)
        known = {**self._known, **answer.fresh}
        self._known = {digest: known[digest] for digest in answer.digests}
        return Loaded(Config(version="v1", resources=tuple(self._known.values())), answer.problems)


class _Values(pickle.Unpickler):
    """Makes values of the configuration, and nothing else, whatever the text asks for."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        """Return a class of values.

        Raises:
            UnpicklingError: It is none.
        """
        if module_name.startswith(_VALUES) and "." not in global_name:
            found = super().find_class(module_name, global_name)
            if isinstance(found, type) and is_dataclass(found):
                return found
        raise pickle.UnpicklingError(f"{module_name}.{global_name} is no value")
