//! The modules of the crate that the model checker runs. Their tests are in `flight.rs`.
#![forbid(unsafe_code)]
#![allow(dead_code, unused_imports)]

#[path = "../src/flight/mod.rs"]
mod flight;
mod modelled;
#[path = "../src/sync.rs"]
mod sync;

mod key {
    //! Stands for the module of the same name, which depends on more.

    #[derive(Clone, PartialEq, Eq, Hash)]
    pub(crate) struct Key(&'static str);

    impl From<&'static str> for Key {
        fn from(text: &'static str) -> Self {
            Self(text)
        }
    }
}

mod random {
    //! Stands for the module of the same name. Keys may collide in a model.

    pub(crate) type Hasher = std::hash::BuildHasherDefault<std::hash::DefaultHasher>;
}
