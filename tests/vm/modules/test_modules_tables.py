import inspect

import pytest

from sylvite.vm.modules import CheckModule, HalModule, IoParametersModule
from sylvite.vm.modules.check import TABLE as CHECK_TABLE
from sylvite.vm.modules.hal.table import TABLE as HAL_TABLE
from sylvite.vm.modules.hal.table import VERSION as HAL_VERSION
from sylvite.vm.modules.io_parameters import TABLE as IO_PARAMETERS_TABLE

# Derived by a script from the compiler's hal.imports.mlir, io_parameters.imports.mlir and
# check.imports.mlir: every declaration, in order, as a calling convention.
UPSTREAM = {
    "hal": {
        "ex.file.from_memory": "rIirIIi_r",
        "allocator.select": "iiICrID_rI",
        "allocator.allocate": "rIiiI_r",
        "allocator.import": "riIiirII_r",
        "buffer.assert": "rrrIii_v",
        "buffer.allocation.preserve": "r_v",
        "buffer.allocation.discard": "r_i",
        "buffer.allocation.is_terminal": "r_i",
        "buffer.subspan": "rII_r",
        "buffer.length": "r_I",
        "buffer.load": "rIi_i",
        "buffer.store": "irIi_v",
        "buffer_view.create": "rIIiiCID_r",
        "buffer_view.assert": "rriiCID_v",
        "buffer_view.buffer": "r_r",
        "buffer_view.element_type": "r_i",
        "buffer_view.encoding_type": "r_i",
        "buffer_view.rank": "r_i",
        "buffer_view.dim": "ri_I",
        "buffer_view.trace": "rCrD_v",
        "channel.create": "rIIrrii_r",
        "channel.split": "riiI_r",
        "channel.rank_and_count": "r_ii",
        "command_buffer.create": "riiIi_r",
        "command_buffer.finalize": "r_v",
        "command_buffer.begin_debug_group": "rr_v",
        "command_buffer.end_debug_group": "r_v",
        "command_buffer.execution_barrier": "riiI_v",
        "command_buffer.advise_buffer": "rrIIIi_v",
        "command_buffer.fill_buffer": "rrIIiIiI_v",
        "command_buffer.update_buffer": "rrIrIIiI_v",
        "command_buffer.copy_buffer": "riirIrIII_v",
        "command_buffer.collective": "rriiiirrIIIII_v",
        "command_buffer.dispatch": "rrIiiiICiDCiirIID_v",
        "command_buffer.dispatch.indirect": "rrIirIICiDCiirIID_v",
        "device.allocator": "r_r",
        "device.query.i64": "rrr_iI",
        "device.queue.alloca": "rIrrIiiII_r",
        "device.queue.dealloca": "rIrrrI_v",
        "device.queue.fill": "rIrrrIIIiI_v",
        "device.queue.update": "rIrrrIrIII_v",
        "device.queue.copy": "rIrrrIrIII_v",
        "device.queue.read": "rIrrrIrIII_v",
        "device.queue.write": "rIrrrIrIII_v",
        "device.queue.barrier": "rIrrI_v",
        "device.queue.execute": "rIrrrI_v",
        "device.queue.execute.indirect": "rIrrrICrIID_v",
        "device.queue.flush": "rI_v",
        "devices.count": "v_i",
        "devices.get": "i_r",
        "executable.create": "rIrrr_r",
        "executable.lookup.function": "rr_I",
        "fence.create": "rI_r",
        "fence.join": "ICrD_r",
        "fence.query": "r_i",
        "fence.signal": "r_v",
        "fence.fail": "ri_v",
        "fence.await": "iICrD_i",
    },
    "io_parameters": {
        "load": "rIrrrIiirrr_r",
        "gather": "rIrrrrrrr_v",
        "scatter": "rIrrrrrrr_v",
    },
    "check": {
        "expect_true": "i_v",
        "expect_false": "i_v",
        "expect_all_true": "rr_v",
        "expect_eq": "rrr_v",
        "expect_almost_eq": "rrrff_v",
    },
}

TABLES = {"hal": HAL_TABLE, "io_parameters": IO_PARAMETERS_TABLE, "check": CHECK_TABLE}
MODULES = {"hal": HalModule, "io_parameters": IoParametersModule, "check": CheckModule}
ROWS = [
    pytest.param(module, *row, id=f"{module}.{row[0]}") for module, rows in TABLES.items() for row in rows
]


@pytest.mark.parametrize("module", UPSTREAM)
def test_table_is_the_compilers_list(module):
    assert [(name, convention) for name, convention, _ in TABLES[module]] == list(UPSTREAM[module].items())


@pytest.mark.parametrize("module", UPSTREAM)
def test_module_names_itself_and_serves_its_table(module):
    kind = MODULES[module]
    assert kind.name == module
    assert kind.version == {"hal": 7, "io_parameters": 0, "check": 0}[module]
    instance = kind() if kind is CheckModule else kind.__new__(kind)
    assert list(instance.functions) == [name for name, _, _ in TABLES[module]]
    for name, function in instance.functions.items():
        assert function.name == name


def test_hal_version_is_what_the_imports_ask_for():
    # `minimum_version` attributes of hal.imports.mlir go up to this.
    assert HAL_VERSION == 7


def argument_count(convention):
    """Arguments of a call; a variadic span is one."""
    count, depth = 0, 0
    for character in convention.partition("_")[0]:
        count += character != "v" and depth == 0 and character != "D"
        depth += (character == "C") - (character == "D")
    return count


@pytest.mark.parametrize(("module", "name", "convention", "call"), ROWS)
def test_function_takes_what_its_convention_says(module, name, convention, call):
    parameters = inspect.signature(call).parameters.values()
    if any(parameter.kind is inspect.Parameter.VAR_POSITIONAL for parameter in parameters):
        return
    assert len(parameters) == 1 + argument_count(convention)
    assert call.__doc__
