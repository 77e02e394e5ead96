#![doc = include_str!("../../docs/testing-your-code.md")]

mod faulty;
mod interceptor;

pub use self::{
    faulty::{Fault, Faulty},
    interceptor::Op,
};

// They show the hidden traits of the backends.
#[doc(hidden)]
pub use self::{
    faulty::Faults,
    interceptor::{Answer, Hook, Interceptor, Operation},
};
