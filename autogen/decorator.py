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
from autogen.options import PLAIN, Cpu, Gradient, Options, Reads, Retrace, Tune
from autogen.policies import Policy

if TYPE_CHECKING:
    from autogen.runtime.handwritten import Handwritten

_Loss = TypeVar("_Loss", bound=Callable[..., Any])

_DISPATCHER = "__autogen_dispatcher__"
MISSING: Any = object()  # no argument


@overload
def autogen_loss(
    loss: _Loss,
    *,
    policy: Policy | str | None = None,
    gradient: Gradient = "backward",
    static_graph: bool = False,
    retrace: Retrace = "changes",
    handwritten: Callable[[], Handwritten] | None = None,
    tune: Tune | None = None,
    cpu: Cpu | None = None,
    reads: Reads = "anything",
) -> _Loss: ...
@overload
def autogen_loss(
    *,
    policy: Policy | str | None = None,
    gradient: Gradient = "backward",
    static_graph: bool = False,
    retrace: Retrace = "changes",
    handwritten: Callable[[], Handwritten] | None = None,
    tune: Tune | None = None,
    cpu: Cpu | None = None,
    reads: Reads = "anything",
) -> Callable[[_Loss], _Loss]: ...
def autogen_loss(
    loss: Any = MISSING,
    *,
    policy: Policy | str | None = None,
    gradient: Gradient = "backward",
    static_graph: bool = False,
    retrace: Retrace = "changes",
    handwritten: Callable[[], Handwritten] | None = None,
    tune: Tune | None = None,
    cpu: Cpu | None = None,
    reads: Reads = "anything",
) -> Any:
    """Run a loss on generated Triton kernels, one forward and one backward, wherever that is possible.

    Works on a `torch.nn.Module` class (whose instances then also take `use_autogen=`, true by default), on an instance,
    and on a plain function of tensors or a method, with or without options::

        @autogen_loss
        class Charbonnier(nn.Module):
            def forward(self, prediction, target):
                return torch.sqrt((prediction - target) ** 2 + 1e-6).mean()

        huber = autogen_loss(nn.HuberLoss(), policy="mandatory")

    It stands above `@dataclass`, which makes no constructor for a class that has one, as a decorated one does.

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
        retrace: "every" captures each call anew, as do `AUTOGEN_RETRACE=1` and a block of `autogen.retracing`; that
            costs hundreds of ms a call. By default a loss is captured again where torch's guards say that something
            has changed that it reads.
        handwritten: makes kernels written by hand for the loss (an `autogen.runtime.handwritten.Handwritten`), which
            come before generated ones, but under the policy "aggressive".
        tune: True (or "profile") times configurations of generated kernels (tile sizes, warps) on the GPU when a size
            first comes, and keeps the best on disk; that takes about a second for each kind of kernel. "first_valid"
            times nothing, and takes the first configuration that fits the device's registers. False takes the default
            for the sizes, as does None unless `AUTOGEN_TUNE=1` is set. See `autogen.tuning`.
        cpu: what runs the loss on the CPU, where Triton's interpreter is off: "eager", or "inductor", which hands the
            captured graph to torch's own compiler; by default what the environment variable `AUTOGEN_CPU` says, and
            else "eager".
        reads: "arguments" declares that the loss reads nothing but its arguments, and numbers, texts and buffers of its
            own module. A call like an earlier one then goes straight to its kernels, past Dynamo's guards.

    Raises:
        TypeError: `loss` is not a module class, a module or a function.
        ValueError: an unknown policy, or another value of an option than those above.
        GraphChangedError: from calls of a loss with a static graph.
    """
    level = None if policy is None else Policy(policy)
    options = Options(level, gradient, static_graph, retrace, handwritten, tune, cpu, reads)
    return functools.partial(_decorate, options=options) if loss is MISSING else _decorate(loss, options)


def _decorate(loss: Any, options: Options) -> Any:
    if isinstance(loss, type):
        if not issubclass(loss, torch.nn.Module):
            raise TypeError(f"autogen_loss takes a torch.nn.Module class; {loss.__name__} is not one")
        return _decorate_class(loss, options)
    if isinstance(loss, torch.nn.Module):
        return _decorate_instance(loss, options)
    if isinstance(loss, (staticmethod, classmethod)):
        return type(loss)(_decorate_function(loss.__func__, options))
    if _is_forward(loss):
        return InstanceForward(_owner(loss), options)
    if not callable(loss):
        raise TypeError(f"autogen_loss takes a module class, a module or a function, not {type(loss).__name__}")
    return _decorate_function(loss, options)


def dispatcher_of(loss: Any) -> tuple[Dispatcher, Any] | None:
    """The dispatcher of a decorated loss, and its `self` if it is a module or a method; None if it is not decorated."""
    method = _method_in(loss)
    found = _dispatcher_in(method)
    return None if found is None else (found, _owner(method))


def call_of(loss: Any, args: tuple[Any, ...]) -> tuple[Dispatcher, torch.nn.Module | None, tuple[Any, ...]]:
    """The dispatcher of a loss, and the module and the arguments that a call of the loss gives it.

    One that is not decorated has the dispatcher that `autogen_loss` would make, and stays as it is.

    Raises:
        TypeError: it is no loss, or a class.
    """
    if isinstance(loss, type):
        raise TypeError(f"pass an instance of {loss.__name__}, not the class")
    found = dispatcher_of(loss)
    if found is None and isinstance(loss, torch.nn.Module):
        if (entry := entry_of(type(loss))) == "__call__":
            return Dispatcher(_method_of(type(loss), entry), type(loss).__name__, Options()), loss, args
        loss = InstanceForward(loss, Options())
    elif found is None:
        loss = _decorate(loss, Options())
    found = found or dispatcher_of(loss)
    assert found is not None, "a decorated loss has a dispatcher"
    dispatcher, owner = found
    if owner is None:
        return dispatcher, None, args
    return (dispatcher, owner, args) if owner is loss or _is_forward(loss) else (dispatcher, None, (owner, *args))


def trace_count(loss: Any) -> int:
    """How often torch has captured a decorated loss; for a module whose class was decorated, all modules of the class.

    Raises:
        TypeError: `loss` is not decorated.
    """
    found = getattr(_method_in(loss), _DISPATCHER, None)  # which `functools.wraps` gives to a wrapper of it as well
    if found is None:
        raise TypeError(f"{getattr(loss, '__name__', type(loss).__name__)} is not decorated with autogen_loss")
    return int(found.captures)


def _method_in(loss: Any) -> Any:
    """What computes a loss: of a module its method, of a module class a function that takes `self`."""
    if isinstance(loss, type):
        return _method_of(loss, entry_of(loss)) if issubclass(loss, torch.nn.Module) else loss
    if not isinstance(loss, torch.nn.Module):
        return loss
    entry = entry_of(type(loss))
    return loss.forward if entry == "forward" else types.MethodType(_method_of(type(loss), entry), loss)


def _dispatcher_in(function: Any) -> Dispatcher | None:
    """The dispatcher of a function that was made here; `functools.wraps` gives it to the wrappers of others as well."""
    if isinstance(function, InstanceForward):
        return function.dispatcher
    found = getattr(function, _DISPATCHER, None)
    if found is None:
        return found
    return found if getattr(function, "__wrapped__", None) is found.function else None


def _owner(method: Any) -> Any:
    """The `self` of a method."""
    if isinstance(method, InstanceForward):
        return None if method.is_bound else method._module
    return method.__self__ if isinstance(method, types.MethodType) else None


def _is_forward(loss: Any) -> bool:
    """Whether a loss is the decorated `forward` of a module."""
    if isinstance(loss, InstanceForward):
        return not loss.is_bound
    owner = _owner(loss)
    is_of_module = isinstance(owner, torch.nn.Module) and entry_of(type(owner)) == "forward"
    return is_of_module and _dispatcher_in(loss) is not None and owner.forward == loss


def entry_of(cls: type) -> str:
    """The method by which a module class computes its loss: `forward`, or `__call__` if it has one of its own."""
    own = cls.__call__
    return "forward" if own is torch.nn.Module.__call__ else "__call__"


def _method_of(cls: type, entry: str) -> Callable[..., Any]:
    """A method of a class as a function that takes `self`, also where it is a static or a class method."""
    found = inspect.getattr_static(cls, entry)
    if isinstance(found, _WithoutSelf):
        return found.__func__
    if not _is_without_self(found):
        return getattr(cls, entry)
    is_of_class = isinstance(found, classmethod)
    plain: Any = getattr(found, "__func__", found)

    @functools.wraps(plain)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return plain(type(self), *args, **kwargs) if is_of_class else plain(*args, **kwargs)

    if isinstance(plain, types.BuiltinFunctionType):
        del method.__wrapped__  # which does not say what it takes
    else:
        signature = inspect.signature(getattr(cls, entry))
        own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
        method.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=[own, *signature.parameters.values()]
        )
    return method


def _is_without_self(method: Any) -> bool:
    """Whether what a class has for a method is not given the object that it is called of."""
    return isinstance(method, (staticmethod, classmethod)) or not hasattr(method, "__get__")


class _WithoutSelf(staticmethod):  # type: ignore[type-arg]
    """A static or class method of a decorated class. Its modules call `method`, which takes `self` and so knows their
    `use_autogen`; of the class itself it is called as before.
    """

    def __init__(self, method: Callable[..., Any], plain: Any) -> None:
        super().__init__(method)
        self._plain = plain

    def __get__(self, module: Any, owner: type | None = None) -> Any:
        if module is not None:
            return types.MethodType(self.__func__, module)
        return self._plain.__get__(None, owner) if hasattr(self._plain, "__get__") else self._plain


def _undecorated(function: Callable[..., Any], options: Options) -> tuple[Callable[..., Any], Options]:
    """What a decorated function was made of, which keeps its handwritten kernels; another function as it is."""
    found = _dispatcher_in(function)
    if found is None:
        return function, options
    if isinstance(function, types.MethodType):  # handwritten kernels are given what a module is made with by that alone
        return types.MethodType(found.function, function.__self__), options
    return found.function, replace(options, handwritten=options.handwritten or found.options.handwritten)


def _in_python(builtin: Callable[..., Any]) -> Callable[..., Any]:
    """A function or method of torch's that is written in C, as `F.cosine_similarity`: it does not say what it takes."""

    def function(*args: Any, **kwargs: Any) -> Any:
        return builtin(*args, **kwargs)

    function.__name__, function.__doc__ = builtin.__name__, builtin.__doc__
    return function


def _decorate_function(function: Callable[..., Any], options: Options) -> Callable[..., Any]:
    function, options = _undecorated(function, options)
    if isinstance(function, (types.BuiltinFunctionType, types.MethodDescriptorType)):
        function = _in_python(function)
    if isinstance(function, torch.jit.ScriptFunction):
        raise TypeError(f"autogen_loss decorates {function.name} before torch.jit.script does, not after that")
    dispatcher = Dispatcher(function, getattr(function, "__name__", type(function).__name__), options)
    call = dispatcher.__call__  # which Python calls faster than an object
    is_compiling = torch.compiler.is_compiling

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return dispatcher.inside(None, args, kwargs)
        return call(None, args, kwargs)

    wrapper = _in_scope_of(function, wrapper)
    setattr(wrapper, _DISPATCHER, dispatcher)
    return wrapper


def _in_scope_of(function: Callable[..., Any], wrapper: Any) -> Any:
    """A wrapper with the global names of what it wraps, whose source TorchScript takes for its own; it reads none."""
    scope = getattr(inspect.unwrap(function), "__globals__", wrapper.__globals__)
    same = types.FunctionType(wrapper.__code__, scope, wrapper.__name__, None, wrapper.__closure__)
    return functools.update_wrapper(same, function)


def _decorate_class(cls: Any, options: Options) -> Any:
    entry = entry_of(cls)
    original, plain = _method_of(cls, entry), inspect.getattr_static(cls, entry)
    dispatcher = Dispatcher(original, cls.__name__, options, cls)
    call = dispatcher.__call__  # which Python calls faster than an object
    is_compiling = torch.compiler.is_compiling

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not self.use_autogen:
            return original(self, *args, **kwargs)
        if is_compiling():
            return dispatcher.inside(self, args, kwargs)
        return call(self, args, kwargs, self.__class__.__name__)

    method = _in_scope_of(original, method)
    setattr(method, _DISPATCHER, dispatcher)
    setattr(cls, entry, _WithoutSelf(method, plain) if _is_without_self(plain) else method)
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
    original, inherited = _undecorated(_method_of(cls, "__call__"), options)
    dispatcher = Dispatcher(original, cls.__name__, inherited)

    @functools.wraps(original)
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return dispatcher.inside(self, args, kwargs)
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
        self._inherited = type(self._module).forward
        function = _method_of(type(self._module), "forward") if self._own is None else self._own
        taken = types.MethodType(function, self._module) if self._own is None else function
        self.__signature__ = inspect.signature(taken)  # which a user's wrapper of this object says is its own
        function, options = _undecorated(function, self._options)
        setattr(self, _DISPATCHER, Dispatcher(function, type(self._module).__name__, options))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return self.dispatcher.inside(None if self.is_bound else self._module, args, kwargs)
        return self.dispatcher(None if self.is_bound else self._module, args, kwargs)

    @property
    def dispatcher(self) -> Dispatcher:
        """That of the function that is `forward` now: the module's class may have another since, or be another."""
        if self._own is None and type(self._module).forward != self._inherited:
            self._connect()
        found: Dispatcher = self.__dict__[_DISPATCHER]
        return found

    @property
    def __code__(self) -> types.CodeType:
        """That of the loss, by which `torch.export` names it."""
        found: types.CodeType = self.dispatcher.function.__code__
        return found

    @property
    def is_bound(self) -> bool:
        """Whether the instance had put something into the place of `forward` itself: that takes no `self`."""
        return self._own is not None

    def __getstate__(self) -> dict[str, Any]:
        return {"_own": self._own, "_module": self._module, "_options": self._options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._connect()
