"""`@autogen_loss`: run a module class, a module or a function on generated kernels.

A loss gets a `Dispatcher`, whatever it is. Other decorators are a part of the loss: `functools.wraps` copies the
attribute by which a dispatcher is found to them, so a function counts as decorated only if what it wraps is what its
dispatcher runs (`dispatcher_in`).

To add an option: a field of `Options` with its check, the argument of `autogen_loss` with its docstring, and its type
in `_Arguments`.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, overload

import torch

from autogen.dispatch.dispatcher import Dispatcher
from autogen.settings.options import PLAIN, Cpu, Gradient, Options, Reads, Retrace, Sums, Tune
from autogen.settings.policies import Policy, in_torch

if TYPE_CHECKING:
    from typing_extensions import TypedDict, Unpack

    from autogen.runtime.handwritten import Handwritten

    class _Arguments(TypedDict, total=False):
        policy: Policy | str | None
        gradient: Gradient
        static_graph: bool
        retrace: Retrace
        handwritten: Callable[[], Handwritten] | None
        tune: Tune | None
        cpu: Cpu | None
        reads: Reads
        config: Mapping[str, Any] | None
        chunk: int | None
        sums: Sums


_Loss = TypeVar("_Loss", bound=Callable[..., Any])

_DISPATCHER = "__autogen_dispatcher__"
MISSING: Any = object()  # no argument


@overload
def autogen_loss(loss: _Loss, **options: Unpack[_Arguments]) -> _Loss: ...
@overload
def autogen_loss(**options: Unpack[_Arguments]) -> Callable[[_Loss], _Loss]: ...
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
    config: Mapping[str, Any] | None = None,
    chunk: int | None = None,
    sums: Sums = "float32",
) -> Any:
    """Run a loss on generated Triton kernels, one forward and one backward, wherever that is possible.

    Works on a `torch.nn.Module` class (whose instances then also take `use_autogen=`, true by default), on an instance,
    and on a plain function of tensors or a method, with or without options::

        @autogen_loss
        class Charbonnier(nn.Module):
            def forward(self, prediction, target):
                return torch.sqrt((prediction - target) ** 2 + 1e-6).mean()

        huber = autogen_loss(nn.HuberLoss(), policy="mandatory")

    Put it above `@dataclass`: a decorated class has a constructor, and `@dataclass` makes none for such a class.

    The loss keeps its name, signature, `state_dict` and type, and takes the shapes, dtypes and devices that it took
    before. Where no kernel can be generated or run, it runs in torch as before; `autogen.explain` says why.

    Args:
        loss: what to decorate.
        policy: "disabled", "default", "aggressive" or "mandatory", for this loss alone; by default the policy in force
            at each call (see `autogen.policy`).
        gradient: "backward" (the default) computes the gradient in backward's kernel. "forward" computes it in
            forward's, for an upstream gradient of 1, where that needs no further launch: the inputs are read once, not
            twice, and the gradient takes memory from then on. Backward's kernel returns at once if the upstream
            gradient is 1, and else computes the gradient as by default, so this does not pay under loss scaling.
            `autogen.explain` says why where it was not possible.
        static_graph: whether a call that needs another graph than the first one of the module or function is an error,
            if both ask for the same gradients. Sizes may differ.
        retrace: "changes" (the default) captures a loss again where torch's guards say that something it reads has
            changed. "every" captures each call, as do `AUTOGEN_RETRACE=1` and a block of `autogen.retracing`; that
            costs hundreds of ms a call.
        handwritten: a function that returns handwritten kernels for the loss (an
            `autogen.runtime.handwritten.Handwritten`). They are preferred to generated ones, except under the policy
            "aggressive".
        tune: True (or "profile") times configurations of generated kernels (tile sizes, warps) on the GPU when a size
            is new, and stores the best on disk; that takes about a second for each kind of kernel. "first_valid" times
            nothing, and takes the first configuration that fits the device's registers. False takes the default for
            the sizes, as does None unless `AUTOGEN_TUNE` is set to 1 or "first_valid". See `autogen.tuning`.
        cpu: what runs the loss on the CPU, where Triton's interpreter is off: "eager", or "inductor", which hands the
            captured graph to torch's own compiler; by default what the environment variable `AUTOGEN_CPU` says, and
            else "eager".
        reads: "anything" (the default) has Dynamo find out what the loss reads. "arguments" declares that it reads its
            arguments, and numbers, strings, parameters and buffers of its own module, and nothing else: a call like an
            earlier one then skips Dynamo's guards, which take some 10 µs.
        config: launch parameters of generated kernels, instead of those chosen by the sizes: tile sizes (such as
            "BLOCK", or "ROWS" and "COLS", in elements, powers of two) and "num_warps" (of 32 threads), for both
            directions, or for each: `{"forward": {"BLOCK": 2048}}`. `explain` tells which ones a kernel has. Once they
            were valid for some sizes, a kernel takes its defaults for sizes for which they are not.
        chunk: how many rows of a matrix product (the logits of a language model's head) exist at once, where the loss
            is computed row by row; at least 1. By default all rows, if they and their gradients take at most 256 MiB or
            are at most 1024, else as few chunks as possible of at most that size.
        sums: the precision in which gradients of weights are accumulated over chunks, if the product is in half
            precision: "float32" (the default), which takes twice the memory of the weight until backward has run, or
            "weight" for the dtype of the weight, which rounds once per chunk.

    Returns:
        The decorated loss: the same class or module, or a function of the same signature. Without `loss`, a decorator.

    Raises:
        TypeError: `loss` is not a module class, a module or a function; or a class whose `forward` takes no `self`.
        ValueError: an unknown policy, or another value of an option than those above.
        ConfigError: from calls, and `explain`: a kernel does not have what `config` names, or not for these sizes.
        GraphChangedError: from calls of a loss with a static graph.
    """
    level = None if policy is None else Policy(policy)
    options = Options(level, gradient, static_graph, retrace, handwritten, tune, cpu, reads, config, chunk, sums)
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
    if not callable(loss):
        raise TypeError(f"autogen_loss takes a module class, a module or a function, not {type(loss).__name__}")
    return _decorate_function(loss, options)


def call_of(loss: Any, args: tuple[Any, ...]) -> tuple[Dispatcher, tuple[Any, ...]]:
    """The dispatcher of a loss, and the arguments that a call of the loss gives it.

    One that is not decorated has the dispatcher that `autogen_loss` would make, and stays as it is.

    Raises:
        TypeError: it is no loss, or a class.
    """
    if isinstance(loss, type):
        raise TypeError(f"pass an instance of {loss.__name__}, not the class")
    method = _method_in(loss)
    if dispatcher_in(method) is None:
        is_forward = isinstance(loss, torch.nn.Module) and _entry_of(type(loss)) == "forward"
        method = InstanceForward(loss, Options()) if is_forward else _decorate(method, Options())
    dispatcher, owner = dispatcher_in(method), _owner(method)
    assert dispatcher is not None, "a decorated loss has a dispatcher"
    return dispatcher, args if owner is None else (owner, *args)


def trace_count(loss: Any) -> int:
    """How often torch has captured a decorated loss, recompiles included.

    Args:
        loss: a decorated function, module or module class. Modules of a decorated class are counted together.

    Raises:
        TypeError: `loss` is not decorated.
    """
    found = getattr(_method_in(loss), _DISPATCHER, None)  # which `functools.wraps` gives to a wrapper of it as well
    if found is None:
        raise TypeError(f"{getattr(loss, '__name__', type(loss).__name__)} is not decorated with autogen_loss")
    return int(found.captures)


def _method_in(loss: Any) -> Any:
    """What computes a loss: the method of a module or a module class."""
    if isinstance(loss, torch.nn.Module):
        return loss.forward if (entry := _entry_of(type(loss))) == "forward" else getattr(loss, entry)
    is_class = isinstance(loss, type) and issubclass(loss, torch.nn.Module)
    return getattr(loss, _entry_of(loss)) if is_class else loss


def dispatcher_in(function: Any) -> Dispatcher | None:
    """The dispatcher of a function that was made here; `functools.wraps` gives it to the wrappers of others as well."""
    if isinstance(function, InstanceForward):
        return function.dispatcher
    found = getattr(function, _DISPATCHER, None)
    return found if found is not None and getattr(function, "__wrapped__", None) is found.function else None


def _owner(method: Any) -> Any:
    """The `self` of a method."""
    if isinstance(method, InstanceForward):
        return method._module if method._own is None else None
    return method.__self__ if isinstance(method, types.MethodType) else None


def _entry_of(cls: type[torch.nn.Module]) -> str:
    """The method that computes the loss of a module class: `forward`, or `__call__` if it has that alone."""
    has_forward = cls.forward is not torch.nn.Module.forward or cls.__call__ is torch.nn.Module.__call__
    return "forward" if has_forward else "__call__"


def _undecorated(function: Callable[..., Any], options: Options) -> tuple[Callable[..., Any], Options]:
    """What a decorated function was made of, which keeps its handwritten kernels; another function as it is."""
    found = dispatcher_in(function)
    if found is None:
        return function, options
    owner = _owner(function)
    if owner is not None:  # handwritten kernels are given what a module is made with by that alone
        return types.MethodType(found.function, owner), options
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
    return dispatched(Dispatcher(function, getattr(function, "__name__", type(function).__name__), options))


def dispatched(dispatcher: Dispatcher) -> Any:
    """A dispatcher's function, each call of which is the dispatcher's; of one with an owner, the owner's method."""
    function = dispatcher.function
    call = dispatcher.__call__  # which Python calls faster than an object
    is_compiling = torch.compiler.is_compiling

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return dispatcher.inside(args, kwargs)
        return call(args, kwargs)

    wrapper = _in_scope_of(function, wrapper)
    setattr(wrapper, _DISPATCHER, dispatcher)
    return wrapper


def _in_scope_of(function: Callable[..., Any], wrapper: Any) -> Any:
    """A wrapper with the global names of what it wraps, whose source TorchScript takes for its own; it reads none."""
    scope = getattr(inspect.unwrap(function), "__globals__", wrapper.__globals__)
    same = types.FunctionType(wrapper.__code__, scope, wrapper.__name__, None, wrapper.__closure__)
    return functools.update_wrapper(same, function)


def _decorate_class(cls: Any, options: Options) -> Any:
    entry = _entry_of(cls)
    if _is_without_self(cls):
        raise TypeError(f"the forward of {cls.__name__} takes no `self`; decorate an instance, or the function itself")
    original = getattr(cls, entry)
    dispatcher = Dispatcher(original, cls.__name__, options, cls)
    call = dispatcher.__call__  # which Python calls faster than an object
    is_compiling, run_in_torch = torch.compiler.is_compiling, in_torch

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not self.use_autogen:
            return run_in_torch(original, self, *args, **kwargs)
        if is_compiling():
            return dispatcher.inside((self, *args), kwargs)
        return call((self, *args), kwargs)

    method = _in_scope_of(original, method)
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
    parameters = sorted([*signature.parameters.values(), flag], key=lambda parameter: parameter.kind)
    __init__.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return __init__


def _decorate_instance(module: torch.nn.Module, options: Options) -> torch.nn.Module:
    if dispatcher_in(_method_in(module)) is None or options != PLAIN:
        if _entry_of(type(module)) == "forward":
            module.forward = InstanceForward(module, options)
        else:
            module.__class__ = _class_of_one(type(module), options)
    return module


def _is_without_self(cls: type[torch.nn.Module]) -> bool:
    return isinstance(inspect.getattr_static(cls, "forward"), (staticmethod, classmethod))


def _class_of_one(cls: Any, options: Options) -> Any:
    """A subclass, for one instance, whose `__call__` is decorated: Python looks that up in the class alone."""
    cls = getattr(cls, "__autogen_original__", cls)
    call, inherited = _undecorated(cls.__call__, options)

    def __reduce_ex__(self: Any, protocol: Any) -> Any:
        return _new_of_one, (cls, options), self.__dict__

    names = {name: getattr(cls, name) for name in ("__module__", "__qualname__", "__doc__")}
    methods = {"__call__": call, "__reduce_ex__": __reduce_ex__, "__autogen_original__": cls}
    return _decorate_class(type(cls.__name__, (cls,), names | methods), inherited)


def _new_of_one(cls: Any, options: Options) -> Any:
    return cls.__new__(_class_of_one(cls, options))


class InstanceForward:
    """The `forward` of one decorated module. Copies and pickles with it; what was compiled stays behind."""

    def __init__(self, module: torch.nn.Module, options: Options) -> None:
        own = module.__dict__.get("forward")  # which the instance has put into the place of that of its class
        self._own: Any = own._own if isinstance(own, InstanceForward) else own
        if self._own is None and _is_without_self(type(module)):
            self._own = type(module).forward
        self._module, self._options = module, options
        self._connect()

    def _connect(self) -> None:
        self._inherited = type(self._module).forward
        function: Any = type(self._module).forward if self._own is None else self._own
        taken = types.MethodType(function, self._module) if self._own is None else function
        self.__signature__ = inspect.signature(taken)  # which a user's wrapper of this object says is its own
        function, options = _undecorated(function, self._options)
        kind = type(self._module)
        setattr(self, _DISPATCHER, Dispatcher(function, kind.__name__, options, kind if self._own is None else None))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given = (self._module, *args) if self._own is None else args
        if torch.compiler.is_compiling():
            return self.dispatcher.inside(given, kwargs)
        return self.dispatcher(given, kwargs)

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

    def __getstate__(self) -> dict[str, Any]:
        return {"_own": self._own, "_module": self._module, "_options": self._options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._connect()
