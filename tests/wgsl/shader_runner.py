"""Runs translated shaders on both providers, and writes the SPIR-V of small kernels."""

from __future__ import annotations

import functools
import importlib

import numpy as np
from tests import software_gpu

from sylvite import spirv, wgsl

PROVIDERS = {"wgpu": "wgpu", "dawn": "wgpudawn"}

PREAMBLE = """
OpCapability Shader
OpExtension "SPV_KHR_storage_buffer_storage_class"
%glsl = OpExtInstImport "GLSL.std.450"
OpMemoryModel Logical GLSL450
OpEntryPoint GLCompute %kernel "kernel" %id {interface}
OpExecutionMode %kernel LocalSize {size} 1 1
OpDecorate %id BuiltIn LocalInvocationId
{decorations}
%void = OpTypeVoid
%bool = OpTypeBool
%uint = OpTypeInt 32 0
%int = OpTypeInt 32 1
%float = OpTypeFloat 32
%v2uint = OpTypeVector %uint 2
%v3uint = OpTypeVector %uint 3
%v4uint = OpTypeVector %uint 4
%v2float = OpTypeVector %float 2
%v4float = OpTypeVector %float 4
%v4int = OpTypeVector %int 4
%v4bool = OpTypeVector %bool 4
%v2bool = OpTypeVector %bool 2
%pair = OpTypeStruct %uint %uint
%function_void = OpTypeFunction %void
%input_v3uint = OpTypePointer Input %v3uint
%id = OpVariable %input_v3uint Input
%u0 = OpConstant %uint 0
%u1 = OpConstant %uint 1
%u2 = OpConstant %uint 2
%u3 = OpConstant %uint 3
%u4 = OpConstant %uint 4
%u264 = OpConstant %uint 264
"""
BUFFER_TYPES = """
%{element}s = OpTypeRuntimeArray %{element}
OpDecorate %{element}s ArrayStride {stride}
%block_{element} = OpTypeStruct %{element}s
OpDecorate %block_{element} Block
OpMemberDecorate %block_{element} 0 Offset 0
%to_block_{element} = OpTypePointer StorageBuffer %block_{element}
%to_{element} = OpTypePointer StorageBuffer %{element}
"""
STRIDES = {
    "uint": 4,
    "int": 4,
    "float": 4,
    "v2uint": 8,
    "v4uint": 16,
    "v2float": 8,
    "v4float": 16,
    "v4int": 16,
}


def kernel(buffers, body, *, size=64, globals_="", functions="", decorations="", interface=""):
    """A kernel's text: ``buffers`` maps names to element types; ``%lane`` is the invocation's number."""
    places = "".join(
        f"OpDecorate %{name} DescriptorSet 0\nOpDecorate %{name} Binding {index}\n"
        for index, name in enumerate(buffers)
    )
    text = PREAMBLE.format(size=size, decorations=places + decorations, interface=interface)
    for element in dict.fromkeys(buffers.values()):
        text += BUFFER_TYPES.format(element=element, stride=STRIDES[element])
    for name, element in buffers.items():
        text += f"%{name} = OpVariable %to_block_{element} StorageBuffer\n"
    text += globals_ + functions
    text += "%kernel = OpFunction %void None %function_void\n%entry = OpLabel\n"
    text += "%whole = OpLoad %v3uint %id\n%lane = OpCompositeExtract %uint %whole 0\n"
    return text + body + "\nOpReturn\nOpFunctionEnd\n"


def chain(name, buffer, element, index="%lane"):
    return f"%{name} = OpAccessChain %to_{element} %{buffer} %u0 {index}\n"


def load(name, buffer, element, index="%lane"):
    return chain(f"at_{name}", buffer, element, index) + f"%{name} = OpLoad %{element} %at_{name}\n"


def store(value, buffer, element, index="%lane"):
    return chain(f"to_{value}_", buffer, element, index) + f"OpStore %to_{value}_ %{value}\n"


def translate(text, **options):
    return wgsl.translate(spirv.read(spirv.assemble(text)), "kernel", **options)


@functools.cache
def _gpu(provider):
    missing = software_gpu.find(provider)
    if missing is not None:
        return missing
    module = importlib.import_module(PROVIDERS[provider])
    adapter = module.gpu.request_adapter_sync()
    wanted = ["subgroups"] if provider == "dawn" and "subgroups" in adapter.features else []
    return adapter.request_device_sync(required_features=wanted)


def device(provider):
    """The provider's device; skips the test when there is none."""
    import pytest

    found = _gpu(provider)
    if isinstance(found, str):
        pytest.skip(found)
    return found


def compile_shader(provider, source):
    gpu = device(provider)
    module = gpu.create_shader_module(code=source)
    return gpu.create_compute_pipeline(layout="auto", compute={"module": module, "entry_point": "main"})


def run(provider, shader, arrays, *, constants=(), groups=(1, 1, 1)):
    """Run a shader over buffers holding ``arrays`` (by binding); gives what they hold afterwards."""
    gpu = device(provider)
    source = shader.source
    visible = {"visibility": 4}
    entries = [{"binding": b.binding, **visible, "buffer": {"type": "storage"}} for b in shader.bindings]
    buffers = {}
    storage, copy_from, copy_to, uniform = 0x80, 0x4, 0x8, 0x40
    for binding in shader.bindings:
        data = np.ascontiguousarray(arrays[binding.binding])
        buffer = gpu.create_buffer(size=max(data.nbytes, 16), usage=storage | copy_from | copy_to)
        gpu.queue.write_buffer(buffer, 0, data)
        buffers[binding.binding] = buffer
    if shader.uniform_byte_length:
        words = [*constants, *[0] * (shader.push_constant_words - len(constants)), *shader.uniform_words]
        words += [0, 0, 0, *groups] if shader.has_grid else []
        data = np.zeros(shader.uniform_byte_length // 4, np.uint32)
        data[: len(words)] = words
        buffers[shader.uniform_binding] = gpu.create_buffer(size=data.nbytes, usage=uniform | copy_to)
        gpu.queue.write_buffer(buffers[shader.uniform_binding], 0, data)
        entries.append({"binding": shader.uniform_binding, **visible, "buffer": {"type": "uniform"}})
    layout = gpu.create_bind_group_layout(entries=entries)
    pipeline = gpu.create_compute_pipeline(
        layout=gpu.create_pipeline_layout(bind_group_layouts=[layout]),
        compute={"module": gpu.create_shader_module(code=source), "entry_point": shader.entry_point},
    )
    resources = [
        {"binding": index, "resource": {"buffer": buffer, "offset": 0, "size": buffer.size}}
        for index, buffer in buffers.items()
    ]
    encoder = gpu.create_command_encoder()
    pass_ = encoder.begin_compute_pass()
    pass_.set_pipeline(pipeline)
    pass_.set_bind_group(0, gpu.create_bind_group(layout=layout, entries=resources))
    pass_.dispatch_workgroups(*groups)
    pass_.end()
    gpu.queue.submit([encoder.finish()])
    results = {}
    for binding in shader.bindings:
        data = np.frombuffer(gpu.queue.read_buffer(buffers[binding.binding]), np.uint8)
        wanted = np.asarray(arrays[binding.binding])
        results[binding.binding] = data[: wanted.nbytes].view(wanted.dtype).reshape(wanted.shape)
    return results
