"""`@autogen_loss`: a class, an instance or a function becomes the same thing, run on generated kernels."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, overload

import torch

from autogen.dispatch.dispatcher import Dispatcher
from autogen.options import PLAIN, Gradient, Options, Retrace, Tune
from autogen.policies import Policy

if TYPE_CHECKING:
    from autogen.runtime.handwritten import Handwritten

_Loss = TypeVar("_Loss", bound=Callable[..., Any])

_DISPATCHER = "__autogen_dispatcher__"


@overload
def autogen_loss(loss: _Loss) -> _Loss: ...
@overload
def autogen_loss(
    *,
    policy: Policy | str | None = None,
    gradient: Gradient = "backward",
    static_graph: bool = False,
    retrace: Retrace = "changes",
    handwritten: Callable[[], Handwritten] | None = None,
    tune: Tune | None = None,
) -> Callable[[_Loss], _Loss]: ...
def autogen_loss(
    loss: Any = None,
    *,
    policy: Policy | str | None = None,
    gradient: Gradient = "backward",
    static_graph: bool = False,
    retrace: Retrace = "changes",
    handwritten: Callable[[], Handwritten] | None = None,
    tune: Tune | None = None,
) -> Any:
    """Run a loss on generated Triton kernels, one forward and one backward, wherever that is possible.

    Works on a `torch.nn.Module` class (whose instances then also take `use_autogen=`, true by default), on an instance,
    and on a plain function of tensors, with or without options::

        @autogen_loss
        class Charbonnier(nn.Module):
            def forward(self, prediction, target):
                return torch.sqrt((prediction - target) ** 2 + 1e-6).mean()

        huber = autogen_loss(nn.HuberLoss(), policy="mandatory")

    The loss keeps its name, signature, `state_dict` and type. Where no kernel can be generated or run, it computes what
    it always did; `autogen.explain` says why.

    Args:
        loss: what to decorate.
        policy: "disabled", "default", "aggressive" or "mandatory", for this loss alone; by default the policy in force
            at each call (see `autogen.policy`).
        gradient: "forward" lets forward's kernel compute the gradient too, for an upstream gradient of 1, where it can
            do so in its one launch. The inputs are then read once instead of twice; the gradient takes memory from then
            on. Backward's kernel returns at once if the upstream gradient is 1, and else computes the gradient as by
            default, so this does not pay under loss scaling. `autogen.explain` says why where it was not possible.
        static_graph: a call that would need another graph than the first one of the module, or function, is an error
            (of those that ask for the same gradients). Sizes may differ.
        retrace: "every" traces each call, as do `AUTOGEN_RETRACE=1` and a block of `autogen.retracing`: what the loss
            does in Python happens in each, and numbers that it assigns to attributes are kept. That costs hundreds of
            ms a call. By default a loss is traced again where something has changed that it reads, but for what it asks
            Python's library (the environment, files, clocks).
        handwritten: makes kernels written by hand for the loss (an `autogen.runtime.handwritten.Handwritten`), which
            come before generated ones, but under the policy "aggressive".
        tune: True (or "profile") times configurations of generated kernels (tile sizes, warps) on the GPU when a size
            first comes, and keeps the best on disk; that takes about a second for each kind of kernel. "first_valid"
            times nothing, and takes the first configuration that fits the device's registers. False takes the default
            for the sizes, as does None unless `AUTOGEN_TUNE=1` is set. See `autogen.tuning`.

    Raises:
        TypeError: `loss` is not a module class, a module or a function.
        ValueError: an unknown policy, or another value of `gradient`, `retrace` or `tune`.
        GraphChangedError: from calls of a loss with a static graph.
    """
    options = Options(None if policy is None else Policy(policy), gradient, static_graph, retrace, handwritten, tune)
    return functools.partial(_decorate, options=options) if loss is None else _decorate(loss, options)


def _decorate(loss: Any, options: Options) -> Any:
    if isinstance(loss, type):
        if not issubclass(loss, torch.nn.Module):
            raise TypeError(f"autogen_loss takes a torch.nn.Module class; {loss.__name__} is not one")
        return _decorate_class(loss, options)
    if isinstance(loss, torch.nn.Module):
        return _decorate_instance(loss, options)
    if not callable(loss):
        raise TypeError(f"autogen_loss takes a module class, a module or a function, not {type(loss).__name__}")
    return _decorate_function(loss, options)


def dispatcher_of(loss: Any) -> tuple[Dispatcher, torch.nn.Module | None] | None:
    """The dispatcher of a decorated loss, and its module if it is one; None if it is not decorated."""
    if isinstance(loss, torch.nn.Module):
        method = type(loss).__call__ if entry_of(type(loss)) == "__call__" else loss.forward
        found = getattr(method, _DISPATCHER, None)
        bound = isinstance(method, InstanceForward) and method.is_bound
        return None if found is None else (found, None if bound else loss)
    found = getattr(loss, _DISPATCHER, None)
    return None if found is None else (found, None)


def trace_count(loss: Any) -> int:
    """How often a decorated loss has been traced; for a module whose class was decorated, all modules of the class.

    Raises:
        TypeError: `loss` is not decorated.
    """
    found = dispatcher_of(loss)
    if found is None:
        raise TypeError(f"{getattr(loss, '__name__', type(loss).__name__)} is not decorated with autogen_loss")
    return found[0].compilations.traces


def entry_of(cls: type) -> str:
    """The method by which a module class computes its loss: `forward`, or `__call__` if it has one of its own."""
    own = cls.__call__
    return "forward" if own is torch.nn.Module.__call__ else "__call__"


def _undecorated(function: Callable[..., Any], options: Options) -> tuple[Callable[..., Any], Options]:
    """What a decorated function was made of, which keeps its handwritten kernels; another function as it is."""
    found = getattr(function, _DISPATCHER, None)
    if found is None:
        return function, options
    return inspect.unwrap(function), replace(options, handwritten=options.handwritten or found.options.handwritten)


def _in_python(builtin: Callable[..., Any]) -> Callable[..., Any]:
    """A function of torch's that is written in C, such as `F.cosine_similarity`: those do not say what they take."""

    def function(*args: Any, **kwargs: Any) -> Any:
        return builtin(*args, **kwargs)

    function.__name__, function.__doc__ = builtin.__name__, builtin.__doc__
    return function


def _decorate_function(function: Callable[..., Any], options: Options) -> Callable[..., Any]:
    function, options = _undecorated(function, options)
    if isinstance(function, types.BuiltinFunctionType):
        function = _in_python(function)
    dispatcher = Dispatcher(function, getattr(function, "__name__", type(function).__name__), options)
    call = dispatcher.__call__  # which Python calls faster than an object

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return call(None, args, kwargs)

    setattr(wrapper, _DISPATCHER, dispatcher)
    return wrapper


def _decorate_class(cls: Any, options: Options) -> Any:
    entry = entry_of(cls)
    original = getattr(cls, entry)
    dispatcher = Dispatcher(original, cls.__name__, options)
    call = dispatcher.__call__  # which Python calls faster than an object

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not self.use_autogen:
            return original(self, *args, **kwargs)
        return call(self, args, kwargs, type(self).__name__)

    setattr(method, _DISPATCHER, dispatcher)
    setattr(cls, entry, method)
    return takes_use_autogen(cls)


def takes_use_autogen(cls: Any) -> Any:
    """Give a module class the attribute `use_autogen`, and its constructor the argument."""
    cls.use_autogen = True
    if "use_autogen" not in inspect.signature(cls.__init__).parameters:
        cls.__init__ = _with_flag(cls.__init__)
    return cls


def _with_flag(init: Callable[..., None]) -> Callable[..., None]:
    """A constructor that also takes `use_autogen`."""

    @functools.wraps(init)
    def __init__(self: Any, *args: Any, use_autogen: bool | None = None, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        # None leaves alone what the constructor of a decorated base class has set.
        if use_autogen is not None:
            self.use_autogen = use_autogen

    signature = inspect.signature(init)
    flag = inspect.Parameter("use_autogen", inspect.Parameter.KEYWORD_ONLY, default=True, annotation=bool)
    parameters = list(signature.parameters.values())
    rest = [p for p in parameters if p.kind is inspect.Parameter.VAR_KEYWORD]
    parameters = [p for p in parameters if p.kind is not inspect.Parameter.VAR_KEYWORD]
    __init__.__signature__ = signature.replace(parameters=[*parameters, flag, *rest])  # type: ignore[attr-defined]
    return __init__


def _decorate_instance(module: torch.nn.Module, options: Options) -> torch.nn.Module:
    if dispatcher_of(module) is None or options != PLAIN:
        if entry_of(type(module)) == "__call__":
            module.__class__ = _with_own_call(type(module), options)
        else:
            module.forward = InstanceForward(module, options)
    return module


def _with_own_call(cls: Any, options: Options) -> type:
    """A subclass, for one instance, whose `__call__` is dispatched; Python looks it up on the class alone."""
    cls = getattr(cls, "__autogen_original__", cls)
    original = inspect.unwrap(cls.__call__)
    dispatcher = Dispatcher(original, cls.__name__, options)

    @functools.wraps(original)
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        return dispatcher(self, args, kwargs)

    def __reduce_ex__(self: Any, protocol: Any) -> Any:
        return _new_with_own_call, (cls, options), self.__dict__

    setattr(__call__, _DISPATCHER, dispatcher)
    copied = {name: getattr(cls, name) for name in ("__module__", "__qualname__", "__doc__")}
    methods = {"__call__": __call__, "__reduce_ex__": __reduce_ex__, "__autogen_original__": cls}
    return type(cls.__name__, (cls,), copied | methods)


def _new_with_own_call(cls: Any, options: Options) -> Any:
    return cls.__new__(_with_own_call(cls, options))


class InstanceForward:
    """The `forward` of one decorated module. Copies and pickles with it; what was compiled stays behind."""

    def __init__(self, module: torch.nn.Module, options: Options) -> None:
        own = module.__dict__.get("forward")
        self._own = None if isinstance(own, InstanceForward) else own
        self._module = module
        self._options = options
        self._connect()

    def _connect(self) -> None:
        function = self._own or type(self._module).forward
        function, options = _undecorated(function, self._options)
        setattr(self, _DISPATCHER, Dispatcher(function, type(self._module).__name__, options))
        self.__signature__ = inspect.signature(function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return getattr(self, _DISPATCHER)(None if self.is_bound else self._module, args, kwargs)

    @property
    def is_bound(self) -> bool:
        """Whether the instance had put something into the place of `forward` itself: that takes no `self`."""
        return self._own is not None

    def __getstate__(self) -> dict[str, Any]:
        return {"_own": self._own, "_module": self._module, "_options": self._options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._connect()
