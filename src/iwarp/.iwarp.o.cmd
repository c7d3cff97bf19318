savedcmd_src/iwarp/iwarp.o := OBJTREE=/kdir RUST_MODFILE=./riwarp rustc --edition=2021 -Zbinary_dep_depinfo=y -Astable_features -Aunused_features -Dnon_ascii_idents -Dunsafe_op_in_unsafe_fn -Wmissing_docs -Wrust_2018_idioms -Wunreachable_pub -Wclippy::all -Wclippy::as_ptr_cast_mut -Wclippy::as_underscore -Wclippy::cast_lossless -Aclippy::collapsible_if -Aclippy::collapsible_match -Wclippy::ignored_unit_patterns -Aclippy::incompatible_msrv -Wclippy::mut_mut -Wclippy::needless_bitwise_bool -Aclippy::needless_lifetimes -Wclippy::no_mangle_with_rust_abi -Wclippy::ptr_as_ptr -Wclippy::ptr_cast_constness -Wclippy::ref_as_ptr -Wclippy::undocumented_unsafe_blocks -Aclippy::uninlined_format_args -Wclippy::unnecessary_safety_comment -Wclippy::unnecessary_safety_doc -Aclippy::unwrap_or_default -Wrustdoc::missing_crate_level_docs -Wrustdoc::unescaped_backticks -Cpanic=abort -Cembed-bitcode=n -Clto=n -Cforce-unwind-tables=n -Ccodegen-units=1 -Csymbol-mangling-version=v0 -Crelocation-model=static -Zfunction-sections=n -Wclippy::float_arithmetic -Aclippy::precedence --target=/kdir/scripts/target.json -Ctarget-feature=-sse,-sse2,-sse3,-ssse3,-sse4.1,-sse4.2,-avx,-avx2 -Zcf-protection=branch -Zno-jump-tables -Ctarget-cpu=x86-64 -Ztune-cpu=generic -Cno-redzone=y -Ccode-model=kernel -Zfunction-return=thunk-extern -Zpatchable-function-entry=16,16 -Copt-level=2 -Cdebug-assertions=n -Coverflow-checks=y -Cdebuginfo=2 --emit=metadata=./src/iwarp/libiwarp.rmeta  --cfg MODULE  @/kdir/include/generated/rustc_cfg -Zallow-features=arbitrary_self_types,asm_goto,generic_arg_infer,used_with_arg -Zcrate-attr=no_std -Zcrate-attr='feature(arbitrary_self_types,asm_goto,generic_arg_infer,used_with_arg)' -Zunstable-options --extern pin_init --extern kernel --extern zerocopy --extern zerocopy_derive --crate-type rlib -L /kdir/rust/ --sysroot=/dev/null --out-dir src/iwarp/ --emit=dep-info=src/iwarp/.iwarp.o.d --emit=obj=src/iwarp/iwarp.o src/iwarp/iwarp.rs  

source_src/iwarp/iwarp.o := src/iwarp/iwarp.rs

deps_src/iwarp/iwarp.o := \
  src/iwarp/atomic.rs \
  src/iwarp/bytes.rs \
  src/iwarp/ddp.rs \
  src/iwarp/fault.rs \
  src/iwarp/mpa.rs \
  src/iwarp/mpa/negotiate.rs \
  src/iwarp/mpa/start.rs \
  src/iwarp/order.rs \
  src/iwarp/rdmap.rs \
  src/iwarp/readq.rs \
  src/iwarp/receiver.rs \
  src/iwarp/segment.rs \
  src/iwarp/stag.rs \
  src/iwarp/state.rs \
  src/iwarp/terminate.rs \
  /kdir/rust/libcore.rmeta \
  /kdir/rust/libcompiler_builtins.rmeta \

src/iwarp/iwarp.o: $(deps_src/iwarp/iwarp.o)

$(deps_src/iwarp/iwarp.o):
