#![doc = include_str!("../../docs/testing-your-code.md")]

mod faulty;
mod interceptor;
mod operation;

pub use self::{
    faulty::{Fault, Faults, Faulty},
    interceptor::{Hook, Interceptor},
    operation::{Answer, Op, Operation},
};
