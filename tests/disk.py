"A disk that loses what was not synced: what would be left of a folder if the power went now"
import os, stat
from pathlib import Path

class Disk:
    """Watches a folder while code of ours writes in it. A file outlasts a power cut with the bytes of its
    last fsync, empty if there was none; a name outlasts it for certain only if its folder was synced since.
    Whether a later name does is open, so there are two images of each moment: `kept` and `undone`.
    The real disk is not asked to sync, which takes time and changes nothing here."""
    def __init__(self, root, event=lambda what, path: None):
        self.root, self.event = Path(root).resolve(), event
        self.files, self.folders = {}, {}
        self.held = []
        self.root.mkdir(parents=True, exist_ok=True)
        self._names(self.root)

    def __enter__(self):
        self.real = os.fsync, os.replace
        os.fsync, os.replace = self.fsync, self.replace
        return self

    def __exit__(self, *exc):
        os.fsync, os.replace = self.real
        for fd in self.held:
            os.close(fd)

    def _names(self, folder):
        self.folders[os.stat(folder).st_ino] = {
            e.name: (e.inode(), e.is_dir(follow_symlinks=False)) for e in os.scandir(folder)
        }

    def fsync(self, fd):
        path, info = Path(os.readlink(f'/proc/self/fd/{fd}')), os.fstat(fd)
        if self.root not in (path, *path.parents):
            return
        if info.st_ino not in self.files | self.folders:
            self.held.append(os.dup(fd))  # A number that stays taken means one file for good
        if stat.S_ISDIR(info.st_mode):
            self._names(path)
        else:
            self.files[info.st_ino] = path.read_bytes()
        self.event('fsync', path.relative_to(self.root).as_posix())

    def replace(self, a, b):
        self.real[1](a, b)
        b = Path(b).resolve()
        if self.root in b.parents:
            self.event('replace', b.relative_to(self.root).as_posix())

    def image(self, to, names):
        "Write to the folder `to` what is left of the root, with its names `kept` or `undone`"
        Path(to).mkdir(parents=True)
        self._copy(os.stat(self.root).st_ino, self.root if names == 'kept' else None, Path(to))
        return Path(to)

    def _copy(self, ino, folder, to):
        "What is left of the folder with number `ino`, which is at `folder` now if names are kept"
        known = self.folders.get(ino, {})
        if folder:
            known = {e.name: (e.inode(), e.is_dir(follow_symlinks=False)) for e in os.scandir(folder)}
        for name, (inode, is_dir) in known.items():
            if name == '.lock':
                continue
            if not is_dir:
                (to/name).write_bytes(self.files.get(inode, b''))
            else:
                (to/name).mkdir()
                self._copy(inode, folder and folder/name, to/name)
