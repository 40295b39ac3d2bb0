// Kernels for the conformance suite, one executable. All work on small i32 arrays.

#two = #hal.pipeline.layout<bindings = [
  #hal.pipeline.binding<storage_buffer>, #hal.pipeline.binding<storage_buffer>
]>
#one = #hal.pipeline.layout<bindings = [#hal.pipeline.binding<storage_buffer>]>
#two_with_constants = #hal.pipeline.layout<constants = 2, bindings = [
  #hal.pipeline.binding<storage_buffer>, #hal.pipeline.binding<storage_buffer>
]>

hal.executable.source public @kernels {
  // out[i] = in[i] * constant 0 + constant 1, for four elements.
  hal.executable.export public @scale_and_offset ordinal(0) layout(#two_with_constants)
      count(%device: !hal.device) -> (index, index, index) {
    %c1 = arith.constant 1 : index
    hal.return %c1, %c1, %c1 : index, index, index
  }

  // out[linear id] = x | y << 8 | z << 16. The counts are arguments, or the compiler would fold them.
  hal.executable.export public @write_workgroup_ids ordinal(1) layout(#one)
      count(%device: !hal.device, %x: index, %y: index, %z: index) -> (index, index, index) {
    hal.return %x, %y, %z : index, index, index
  }

  // out[i] = -in[i], one element per workgroup along x.
  hal.executable.export public @negate ordinal(2) layout(#two)
      count(%device: !hal.device) -> (index, index, index) {
    %c1 = arith.constant 1 : index
    hal.return %c1, %c1, %c1 : index, index, index
  }

  // out[0] = in[0] / in[1]: traps when in[1] is zero.
  hal.executable.export public @divide ordinal(3) layout(#two)
      count(%device: !hal.device) -> (index, index, index) {
    %c1 = arith.constant 1 : index
    hal.return %c1, %c1, %c1 : index, index, index
  }

  // Counts out[0] up for as long as in[0] is not zero: forever.
  hal.executable.export public @count_while_set ordinal(4) layout(#two)
      count(%device: !hal.device) -> (index, index, index) {
    %c1 = arith.constant 1 : index
    hal.return %c1, %c1, %c1 : index, index, index
  }

  builtin.module {
    func.func @scale_and_offset() {
      %scale = hal.interface.constant.load layout(#two_with_constants) ordinal(0) : i32
      %offset = hal.interface.constant.load layout(#two_with_constants) ordinal(1) : i32
      %in = hal.interface.binding.subspan layout(#two_with_constants) binding(0) : memref<4xi32>
      %out = hal.interface.binding.subspan layout(#two_with_constants) binding(1) : memref<4xi32>
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %c4 = arith.constant 4 : index
      scf.for %i = %c0 to %c4 step %c1 {
        %value = memref.load %in[%i] : memref<4xi32>
        %scaled = arith.muli %value, %scale : i32
        %result = arith.addi %scaled, %offset : i32
        memref.store %result, %out[%i] : memref<4xi32>
      }
      return
    }

    func.func @write_workgroup_ids() {
      %out = hal.interface.binding.subspan layout(#one) binding(0) : memref<4096xi32>
      %x = hal.interface.workgroup.id[0] : index
      %y = hal.interface.workgroup.id[1] : index
      %z = hal.interface.workgroup.id[2] : index
      %count_x = hal.interface.workgroup.count[0] : index
      %count_y = hal.interface.workgroup.count[1] : index
      %plane = arith.muli %z, %count_y : index
      %row = arith.addi %plane, %y : index
      %row_base = arith.muli %row, %count_x : index
      %linear = arith.addi %row_base, %x : index
      %c8 = arith.constant 8 : index
      %c16 = arith.constant 16 : index
      %y_shifted = arith.shli %y, %c8 : index
      %z_shifted = arith.shli %z, %c16 : index
      %xy = arith.ori %x, %y_shifted : index
      %xyz = arith.ori %xy, %z_shifted : index
      %value = arith.index_cast %xyz : index to i32
      memref.store %value, %out[%linear] : memref<4096xi32>
      return
    }

    func.func @negate() {
      %in = hal.interface.binding.subspan layout(#two) binding(0) : memref<64xi32>
      %out = hal.interface.binding.subspan layout(#two) binding(1) : memref<64xi32>
      %x = hal.interface.workgroup.id[0] : index
      %zero = arith.constant 0 : i32
      %value = memref.load %in[%x] : memref<64xi32>
      %result = arith.subi %zero, %value : i32
      memref.store %result, %out[%x] : memref<64xi32>
      return
    }

    func.func @divide() {
      %in = hal.interface.binding.subspan layout(#two) binding(0) : memref<2xi32>
      %out = hal.interface.binding.subspan layout(#two) binding(1) : memref<1xi32>
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %dividend = memref.load %in[%c0] : memref<2xi32>
      %divisor = memref.load %in[%c1] : memref<2xi32>
      %quotient = arith.divsi %dividend, %divisor : i32
      memref.store %quotient, %out[%c0] : memref<1xi32>
      return
    }

    func.func @count_while_set() {
      %in = hal.interface.binding.subspan layout(#two) binding(0) : memref<1xi32>
      %out = hal.interface.binding.subspan layout(#two) binding(1) : memref<1xi32>
      %c0 = arith.constant 0 : index
      %zero = arith.constant 0 : i32
      %one = arith.constant 1 : i32
      scf.while : () -> () {
        %flag = memref.load %in[%c0] : memref<1xi32>
        %more = arith.cmpi ne, %flag, %zero : i32
        scf.condition(%more)
      } do {
        %count = memref.load %out[%c0] : memref<1xi32>
        %next = arith.addi %count, %one : i32
        memref.store %next, %out[%c0] : memref<1xi32>
        scf.yield
      }
      return
    }
  }
}
