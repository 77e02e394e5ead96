use crate::key::Key;

/// Names what a request asks for.
///
/// Two requests with one key get one answer, so everything that decides the answer belongs into it.
/// Implemented for functions from `&Req` to `Option<Key>`.
///
/// ```
/// use bellwether::{Key, layer::KeyFor};
///
/// struct Query {
///     tenant: u32,
///     id: u64,
///     fresh: bool,
/// }
///
/// #[derive(Clone)]
/// struct ByTenant;
///
/// impl KeyFor<Query> for ByTenant {
///     fn key_for(&self, query: &Query) -> Option<Key> {
///         // Who wants it fresh asks for himself.
///         (!query.fresh).then(|| Key::from(format!("{}:{}", query.tenant, query.id)))
///     }
/// }
///
/// let query = Query { tenant: 7, id: 42, fresh: false };
/// assert_eq!(ByTenant.key_for(&query), Some(Key::from("7:42")));
/// ```
pub trait KeyFor<Req> {
    /// The key of a request; none, if it is to reach the service for itself alone.
    fn key_for(&self, request: &Req) -> Option<Key>;
}

impl<Req, F> KeyFor<Req> for F
where
    F: Fn(&Req) -> Option<Key>,
{
    fn key_for(&self, request: &Req) -> Option<Key> {
        self(request)
    }
}
