"""Detect trainables that ignore their config, from their bytecode."""

import dis
import functools
import inspect
from collections.abc import Callable
from types import CodeType
from typing import Any

_READ_ANY_VARIABLE = {"locals", "vars", "eval", "exec", "dir"}
"""Functions that can read a variable whose name is not in the code."""

_JUMPS = frozenset((*dis.hasjrel, *dis.hasjabs))


def ignores_config(function: Callable[..., Any]) -> bool:
    """
    Whether a function never reads the value that its first parameter receives.

    An example is a script whose `main(args=None)` parses the command line: every trial would run
    with the script's defaults. If the bytecode does not tell, the answer is False.
    """
    if isinstance(function, functools.partial):  # with bound objects, see bound_parameters.py
        function = function.func
    code = _code_of(function)
    if code is None or code.co_argcount < 1:
        return False
    is_bound = inspect.ismethod(function) or not inspect.isroutine(function)
    if code.co_argcount <= is_bound:
        return False
    name = code.co_varnames[is_bound]
    if name in code.co_cellvars or _READ_ANY_VARIABLE.intersection(code.co_names):
        return False
    return not _is_loaded(code, name)


def _code_of(function: Callable[..., Any]) -> CodeType | None:
    if not inspect.isroutine(function):
        function = inspect.getattr_static(type(function), "__call__", function)
    found = getattr(getattr(function, "__func__", function), "__code__", None)
    return found if isinstance(found, CodeType) else None


def _is_loaded(code: CodeType, name: str) -> bool:
    """Whether some instruction may read a variable's first value."""
    is_straight = not code.co_exceptiontable  # a function with `try` may jump at any instruction
    for each in dis.get_instructions(code):
        names = each.argval if isinstance(each.argval, tuple) else (each.argval,)
        if name in names and "FAST" in each.opname:
            if each.opname.startswith("LOAD"):
                return True
            stores_it = each.opname.startswith(("STORE", "DELETE")) and names[0] == name
            if stores_it and is_straight:
                return False  # later reads get another value
            if not stores_it:
                return True  # an instruction with two variables, which may load this variable
        is_straight = is_straight and each.opcode not in _JUMPS
    return False
