"""Registers the backend "shoal" when torch is imported, so that a program can name it without `import shoal`.

torch calls autoload() (entry point group torch.backends) at the end of `import torch`, in every program of the environment.
So this package is cheap, loads no library and does not affect programs that never name "shoal". It raises no exception, because
that would make `import torch` fail. TORCH_DEVICE_BACKEND_AUTOLOAD=0 turns the call off.
"""
import importlib.machinery
import importlib.util
import os
import sys
import warnings

import torch

DEVICES = ["cpu", "cuda"]  # devices of a group of backend "shoal" if the script names none


class _Plugins(dict):
    """torch's table of backends, in which shoal can be looked up by its name but is not listed.

    torch 2.11 gives a group of backend "cpu:gloo,cuda:gloo" no default backend if any other backend is listed. Programs that use
    Gloo must not change because shoal is installed.
    """

    def __init__(self, listed, plugin):
        super().__init__(listed)
        self._plugin = plugin

    def __contains__(self, name):
        return name == "SHOAL" or super().__contains__(name)

    def __missing__(self, name):
        if name == "SHOAL":
            return self._plugin
        raise KeyError(name)


def _create(backend_options, group_options):
    try:
        import shoal  # here, because it loads the libraries
    except ImportError as error:
        raise ImportError(_sentence(_installation_complaint() or str(error))) from error
    return shoal._create_backend(backend_options, group_options)


def register():
    """Registers the backend "shoal" in torch.distributed. The libraries are loaded with the first group."""
    dist = torch.distributed
    if not dist.is_available() or hasattr(dist.Backend, "SHOAL"):
        return
    dist.Backend.register_backend("shoal", _create, extended_api=True, devices=DEVICES)
    listed = getattr(dist.Backend, "_plugins", {})  # private: another torch may store its backends elsewhere
    if plugin := listed.pop("SHOAL", None):
        dist.Backend._plugins = _Plugins(listed, plugin)


def _version_complaint():
    """The reason why the package shoal does not fit this torch, or None."""
    from ._build import TORCH  # here, so that autoload() reports a missing file

    if torch.__version__.split("+")[0].split(".")[:2] == TORCH.split("."):
        return None
    return f"it was built for torch {TORCH}, and this is torch {torch.__version__}; c10d's classes differ between them"


def _installation_complaint():
    """The fault of the installation, as far as it shows without loading the package, or None."""
    spec = importlib.util.find_spec("shoal")
    folders = spec.submodule_search_locations if spec else None
    if not folders:
        return "the package shoal is missing beside shoal_autoload"
    modules = [os.path.join(folder, "_C" + suffix) for folder in folders for suffix in importlib.machinery.EXTENSION_SUFFIXES]
    if not any(map(os.path.exists, modules)):
        return f"{folders[0]} has no module _C for Python {sys.version_info.major}.{sys.version_info.minor}"
    return _version_complaint()


def require_fitting_torch():
    """Raises ImportError if the package shoal was built for another torch: loading it would crash."""
    if complaint := _version_complaint():
        raise ImportError(_sentence(complaint))


def _sentence(complaint):
    return (f'backend "shoal" cannot be used: {complaint}. Install shoal again, for this Python and this torch '
            "(pip install --no-build-isolation --force-reinstall --no-deps torch_plugin/python), or remove it.")


def _warn(complaint):
    try:
        warnings.warn(_sentence(complaint), RuntimeWarning, stacklevel=1)
    except RuntimeWarning:  # python -W error
        print(_sentence(complaint), file=sys.stderr)


def autoload():
    """register() for torch's entry point: warns of an installation that does not work, and never raises."""
    try:
        register()
        complaint = _installation_complaint()
    except Exception as error:  # pylint: disable=broad-exception-caught
        complaint = f"{type(error).__name__}: {error}"
    if complaint:
        _warn(complaint)
