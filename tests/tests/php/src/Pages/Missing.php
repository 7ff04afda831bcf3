<?php
namespace Pages;

final class Missing implements \Page
{
    public function answer(\Request $request): \Response
    {
        return new \Response(\View::render('missing', ['title' => 'Not here', 'path' => $request->path]), 404);
    }
}
