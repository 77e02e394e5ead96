use crate::key::Key;

/// Derives the key under which the response to a request is shared.
///
/// Two requests with one key get one response. So the key must contain everything that the response
/// depends on. The trait is implemented for functions from `&Req` to `Option<Key>`.
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
///         // A request for fresh data is never shared.
///         (!query.fresh).then(|| Key::from(format!("{}:{}", query.tenant, query.id)))
///     }
/// }
///
/// let query = Query { tenant: 7, id: 42, fresh: false };
/// assert_eq!(ByTenant.key_for(&query), Some(Key::from("7:42")));
/// ```
pub trait KeyFor<Req> {
    /// Returns the key of a request. Returns `None` if the request is not to be shared: it then
    /// passes through to the inner service.
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
