"""The memory of copies: anonymous files, which live as long as anybody has them open."""

import fcntl
import mmap
import os


class Memories:
    """By number; the vault's own descriptors and mappings. Not thread-safe."""

    def __init__(self) -> None:
        self._descriptors: dict[int, int] = {}
        self._mappings: dict[int, mmap.mmap] = {}

    def make(self, number: int, num_bytes: int) -> None:
        """Make one that nobody can shrink: a process with it open must not be able to break ours."""
        descriptor = os.memfd_create(f"varuna-copy-{number}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self._descriptors[number] = descriptor
        os.ftruncate(descriptor, num_bytes)
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)

    def descriptor(self, number: int) -> int:
        """Return the descriptor; it stays ours."""
        return self._descriptors[number]

    def open_to_read(self, number: int) -> int:
        """Return a new descriptor that cannot write; the caller closes it."""
        return os.open(f"/proc/self/fd/{self._descriptors[number]}", os.O_RDONLY | os.O_CLOEXEC)

    def mapped(self, number: int) -> memoryview:
        """Return all of it as bytes; mapped once, since faults are what costs."""
        if number not in self._mappings:
            self._mappings[number] = mmap.mmap(self._descriptors[number], 0)
        return memoryview(self._mappings[number])

    def close(self, number: int) -> None:
        """Let it go; the pages go with the last who has it open."""
        self._mappings.pop(number, None)  # unmapped with its last view
        descriptor = self._descriptors.pop(number, None)
        if descriptor is not None:
            os.close(descriptor)
