"""Why sandboxes do not work on this machine, and what to do: one line each.

In: what failed, and the kernel settings that forbid user namespaces. Out: text for a UserError.

Not here: the trial that fails (Bubblewrap.check).
"""

from collections.abc import Mapping

_SETTINGS = {
    "user.max_user_namespaces": "/proc/sys/user/max_user_namespaces",
    "kernel.unprivileged_userns_clone": "/proc/sys/kernel/unprivileged_userns_clone",
    "kernel.apparmor_restrict_unprivileged_userns": "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
}
_INSTALL = "apt install bubblewrap (Debian, Ubuntu), dnf install bubblewrap (Fedora), pacman -S bubblewrap (Arch)"


def not_installed(program: str) -> str:
    return f"bubblewrap ({program}) is not installed, and nothing runs without a sandbox; install it: {_INSTALL}"


def settings() -> dict[str, str]:
    """Settings of this kernel that concern user namespaces; those it does not have are left out."""
    found = {}
    for name, path in _SETTINGS.items():
        try:
            with open(path) as file:
                found[name] = file.read().strip()
        except OSError:
            continue
    return found


def for_failure(text: str, values: Mapping[str, str]) -> str:
    """The line for a trial that failed with `text` under these settings."""
    if values.get("user.max_user_namespaces") == "0":
        return _allow("user namespaces are switched off", "user.max_user_namespaces=15000")
    if values.get("kernel.unprivileged_userns_clone") == "0":
        return _allow("user namespaces are closed to ordinary users", "kernel.unprivileged_userns_clone=1")
    if values.get("kernel.apparmor_restrict_unprivileged_userns") == "1":
        return _allow("AppArmor restricts user namespaces", "kernel.apparmor_restrict_unprivileged_userns=0")
    if "Unknown option" in text:
        return f"bubblewrap is older than 0.8, which sandboxes need; install a newer one: {_INSTALL}"
    if "overlay" in text or "mount_setattr" in text:
        return f"this kernel mounts no overlay in a user namespace ({text}); use Linux 5.12 or newer with overlayfs"
    if "proc" in text:
        return f"/proc cannot be mounted here ({text}); in a container, start it with --privileged or unmask /proc"
    return f"bubblewrap does not work here ({text}); in a container, start it with --privileged or allow user namespaces"


def _allow(what: str, setting: str) -> str:
    name = setting.partition("=")[0]
    return f"{what} on this machine ({name}), and sandboxes need them; allow them: sudo sysctl -w {setting}"
